// What a verification of n rows costs on this machine, learned while running, and from it the draft length
// that promises the most tokens per second.
//
// Knows nothing of llama.cpp. Plain value type; one thread at a time.

#pragma once

#include <array>
#include <vector>

namespace dflash {

class CostModel {
public:
    static constexpr int max_rows = 64;

    // One verification of n_rows took `us` microseconds.
    void observe(int n_rows, double us);

    // Expected microseconds of a verification of n_rows: measured, interpolated between measured
    // neighbours, or extrapolated by `slope_prior` of a single row for each further one.
    double verify_us(int n_rows) const;

    // How many of the draft tokens to offer, 0 to probabilities.size(), for the best expected rate
    //     (1 + sum_i prod_{j<=i} p_j) / (verify_us(1 + width) + draft_us),
    // and that rate relative to plain decoding in `gain` (1 where the width is 0).
    struct Choice {
        int width = 0;
        double gain = 1.0;
    };
    Choice best_width(const std::vector<float> & probabilities, double draft_us = 0.0) const;

private:
    static constexpr double slope_prior = 0.15;

    struct Cell {
        double us = 0.0;
        int n = 0;
    };
    std::array<Cell, max_rows + 1> cells_{};  // [rows]
};

}  // namespace dflash
