#include "dflash/outcomes.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "dflash/noise.h"

namespace dflash {

std::vector<Outcome> likely_outcomes(const Lattice & lattice, const Tokens & draft,
                                     const std::vector<float> & acceptance, int n, const WalkOptions & noise) {
    std::vector<Outcome> outcomes;
    double survives = 1.0;
    for (std::size_t j = 0; j <= draft.size(); ++j) {
        const int position = static_cast<int>(j) + 1;
        if (position > lattice.size()) {
            break;
        }
        const std::vector<float> row = lattice.row(position, j == 0 ? lattice.anchor() : draft[j - 1]);
        const std::vector<Token> & tokens = lattice.candidates(position);
        const GumbelNoise gumbel(noise.seed, noise.anchor_position + position);
        std::vector<double> weights(row.size());
        for (std::size_t i = 0; i < row.size(); ++i) {
            weights[i] = noise.temperature <= 0.0f ? row[i] : row[i] / noise.temperature + gumbel(tokens[i]);
        }
        const double top = *std::max_element(weights.begin(), weights.end());
        double total = 0.0;
        double drafted = 0.0;
        for (std::size_t i = 0; i < row.size(); ++i) {
            weights[i] = std::exp(weights[i] - top);
            total += weights[i];
            if (j < draft.size() && tokens[i] == draft[j]) {
                drafted += std::exchange(weights[i], 0.0);
            }
        }
        double accepts = 0.0;
        if (j < draft.size()) {
            accepts = acceptance.empty() ? drafted / total : acceptance[j];
        }
        const double left = total - drafted;
        for (std::size_t i = 0; i < row.size() && left > 0.0; ++i) {
            if (weights[i] > 0.0) {
                outcomes.push_back({static_cast<int>(j), tokens[i], survives * (1.0 - accepts) * weights[i] / left});
            }
        }
        survives *= accepts;
    }
    std::stable_sort(outcomes.begin(), outcomes.end(),
                     [](const Outcome & a, const Outcome & b) { return a.probability > b.probability; });
    outcomes.resize(std::min(outcomes.size(), static_cast<std::size_t>(std::max(n, 0))));
    return outcomes;
}

}  // namespace dflash
