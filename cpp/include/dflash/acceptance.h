// How often a source's draft is accepted, position by position, with recency: what the next draft may hope for.
//
// Position i counts only drafts that came to it, so the estimates are the conditional probabilities whose running
// product is the chance that a draft survives to i. Plain value type; one thread at a time.

#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace dflash {

class Acceptance {
public:
    // Until seen otherwise, a position is taken to be accepted with this probability.
    static constexpr float prior = 0.6f;

    // A draft of n_offered tokens had n_accepted of them accepted.
    void observe(int n_accepted, int n_offered) {
        const int reached = std::min(n_accepted + 1, n_offered);
        if (reached > static_cast<int>(cells_.size())) {
            cells_.resize(static_cast<std::size_t>(reached));
        }
        for (int i = 0; i < reached; ++i) {
            Cell & cell = cells_[static_cast<std::size_t>(i)];
            cell.n = std::min(cell.n + 1, memory);
            cell.mean += ((i < n_accepted ? 1.0f : 0.0f) - cell.mean) / static_cast<float>(cell.n + 2);
        }
    }

    // [n] conditional acceptance of positions 1 to n. An unseen position is as good as the one before it.
    std::vector<float> probabilities(int n) const {
        std::vector<float> result;
        float last = prior;
        for (int i = 0; i < n; ++i) {
            if (static_cast<std::size_t>(i) < cells_.size()) {
                last = cells_[static_cast<std::size_t>(i)].mean;
            }
            result.push_back(last);
        }
        return result;
    }

private:
    static constexpr int memory = 60;  // drafts that the mean looks back on, about

    struct Cell {
        float mean = prior;
        int n = 0;
    };
    std::vector<Cell> cells_;
};

}  // namespace dflash
