#include "dflash/cost_model.h"

#include <algorithm>

namespace dflash {

void CostModel::observe(int n_rows, double us) {
    if (n_rows < 1 || n_rows > max_rows || !(us > 0.0)) {
        return;
    }
    ++observations_;
    if (cells_[1].n == 0 && n_rows > 1) {
        single_us_ = us / prior_multiple(n_rows);
    }
    Cell & cell = cells_[static_cast<std::size_t>(n_rows)];
    double & mean = n_rows == 1 ? single_us_ : cell.multiple;
    const double seen = n_rows == 1 ? us : us / single_us_;
    if (cell.n == 0) {
        mean = seen;
    } else {
        // A pass that the machine interrupted says nothing about the next one: outliers are cut.
        mean += (std::min(seen, 2.0 * mean) - mean) * std::max(0.1, 1.0 / (cell.n + 1));
    }
    ++cell.n;
    cell.at = observations_;
}

// The measured multiple; beyond 100 observations without a new one it moves up to half way to a lower prior.
double CostModel::multiple(int n_rows) const {
    if (n_rows == 1) {
        return 1.0;
    }
    const Cell & cell = cells_[static_cast<std::size_t>(n_rows)];
    const double age = static_cast<double>(observations_ - cell.at);
    const double doubt = std::clamp((age - 100.0) / 400.0, 0.0, 0.5);
    return cell.multiple + doubt * std::min(0.0, prior_multiple(n_rows) - cell.multiple);
}

double CostModel::verify_us(int n_rows) const {
    const int rows = std::clamp(n_rows, 1, max_rows);
    int below = rows;
    while (!known(below)) {
        --below;
    }
    int above = rows;
    while (above <= max_rows && !known(above)) {
        ++above;
    }
    if (below == rows) {
        return single_us_ * multiple(rows);
    }
    if (above <= max_rows) {
        const double share = static_cast<double>(rows - below) / (above - below);
        return single_us_ * (multiple(below) + share * (multiple(above) - multiple(below)));
    }
    const double slope = multiple(below) / prior_multiple(below) * slope_prior;
    return single_us_ * (multiple(below) + slope * (rows - below));
}

CostModel::Choice CostModel::best_width(const std::vector<float> & probabilities,
                                        const std::function<double(int)> & draft_us, int least) const {
    Choice best;
    if (least > 0) {
        best.gain = 0.0;
    }
    const double plain_rate = 1.0 / verify_us(1);
    double expected = 1.0;
    double survives = 1.0;
    const int widest = std::min(static_cast<int>(probabilities.size()), max_rows - 1);
    for (int width = 1; width <= widest; ++width) {
        survives *= probabilities[static_cast<std::size_t>(width - 1)];
        expected += survives;
        const double drafting = draft_us ? draft_us(width) : 0.0;
        const double gain = expected / (verify_us(1 + width) + drafting) / plain_rate;
        if (width >= least && gain > best.gain) {
            best = {width, gain};
        }
    }
    return best;
}

}  // namespace dflash
