#include "dflash/cost_model.h"

#include <algorithm>

namespace dflash {

void CostModel::observe(int n_rows, double us) {
    if (n_rows < 1 || n_rows > max_rows || !(us > 0.0)) {
        return;
    }
    Cell & cell = cells_[static_cast<std::size_t>(n_rows)];
    if (cell.n == 0) {
        cell.us = us;
    } else {
        // A pass that the machine interrupted says nothing about the next one: outliers are cut.
        const double capped = std::min(us, 2.0 * cell.us);
        cell.us += (capped - cell.us) * std::max(0.1, 1.0 / (cell.n + 1));
    }
    ++cell.n;
}

double CostModel::verify_us(int n_rows) const {
    const int rows = std::clamp(n_rows, 1, max_rows);
    const auto known = [this](int r) { return cells_[static_cast<std::size_t>(r)].n > 0; };
    const auto us = [this](int r) { return cells_[static_cast<std::size_t>(r)].us; };
    if (known(rows)) {
        return us(rows);
    }
    int below = rows;
    while (below > 0 && !known(below)) {
        --below;
    }
    int above = rows;
    while (above <= max_rows && !known(above)) {
        ++above;
    }
    if (below > 0 && above <= max_rows) {
        return us(below) + (us(above) - us(below)) * (rows - below) / (above - below);
    }
    if (below > 0) {
        const double one_row = us(below) / (1.0 + slope_prior * (below - 1));
        return us(below) + slope_prior * one_row * (rows - below);
    }
    if (above <= max_rows) {
        return us(above) * (1.0 + slope_prior * (rows - 1)) / (1.0 + slope_prior * (above - 1));
    }
    return 1.0 + slope_prior * (rows - 1);  // nothing measured: only ratios matter
}

CostModel::Choice CostModel::best_width(const std::vector<float> & probabilities, double draft_us) const {
    Choice best;
    const double plain_rate = 1.0 / verify_us(1);
    double expected = 1.0;
    double survives = 1.0;
    const int widest = std::min(static_cast<int>(probabilities.size()), max_rows - 1);
    for (int width = 1; width <= widest; ++width) {
        survives *= probabilities[static_cast<std::size_t>(width - 1)];
        expected += survives;
        const double gain = expected / (verify_us(1 + width) + draft_us) / plain_rate;
        if (gain > best.gain) {
            best = {width, gain};
        }
    }
    return best;
}

}  // namespace dflash
