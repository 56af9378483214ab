// The drafter's two-tap dynamic convolution, plainly: the reference that device kernels are held to.
//
//     out[t, c] = (base[0, c] + d[t, 0, g(c)]) * y[t, c] + (base[1, c] + d[t, 1, g(c)]) * y[t - 1, c]
//
// g(c) = c / group_size. The first row of a block reads zero to its left: taps never cross a block. A sublayer has two
// of them, before and after, whose coefficients d are one projection of its normed input; after it the residual is
// added. Pure function; safe from any thread.

#pragma once

#include <vector>

namespace dflash {

enum class ConvSide { before, after };

struct TwoTapConvShape {
    int n_blocks;
    int block_rows;  // rows of a block, the anchor's included
    int hidden;
    int group_size;  // divides hidden

    int n_groups() const { return hidden / group_size; }
    int n_rows() const { return n_blocks * block_rows; }
};

// y: [n_rows][hidden]; base: [2][hidden], of that side; d: [n_rows][4][n_groups], both sides' taps in order; residual:
// [n_rows][hidden] or empty. Returns [n_rows][hidden]. Throws std::invalid_argument where a size does not fit.
std::vector<float> two_tap_conv(const TwoTapConvShape & shape, ConvSide side, const std::vector<float> & y,
                                const std::vector<float> & base, const std::vector<float> & d,
                                const std::vector<float> & residual);

}  // namespace dflash
