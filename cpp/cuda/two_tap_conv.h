// The two-tap dynamic convolution on the device, with coefficients and, after a sublayer, the residual in one pass:
// three reads and a write a value, where a graph of ggml's operations takes nine passes over the rows.
//
// The reference is dflash::two_tap_conv; the formula stands there.

#pragma once

#include <cstdint>

#include "cuda/portable.h"
#include "dflash/two_tap_conv.h"

namespace dflash::cuda {

struct TwoTapConv {
    static constexpr int n_threads = 256;

    TwoTapConvShape shape;
    ConvSide side;
    const float * y;         // [n_rows][hidden]
    const float * base;      // [2][hidden] of this side
    const float * d;         // [n_rows][4][n_groups]
    const float * residual;  // [n_rows][hidden] or null
    float * out;             // [n_rows][hidden]; not y

    struct Shared {};

    // Blocks of threads for the whole: each takes n_threads channels of a row.
    DFLASH_HD int blocks_per_row() const { return (shape.hidden + n_threads - 1) / n_threads; }
    DFLASH_HD int n_blocks() const { return shape.n_blocks * shape.block_rows * blocks_per_row(); }

    template <class Block>
    DFLASH_HD void run(int block, Shared &, const Block & each_thread) const {
        const int row = block / blocks_per_row();
        const int first_channel = block % blocks_per_row() * n_threads;
        const int groups = shape.hidden / shape.group_size;
        each_thread([&](int thread) {
            const int c = first_channel + thread;
            if (c >= shape.hidden) {
                return;
            }
            const std::int64_t at = std::int64_t(row) * shape.hidden + c;
            const std::int64_t tap = (std::int64_t(row) * 4 + (side == ConvSide::before ? 0 : 2)) * groups;
            const int group = c / shape.group_size;
            const float left = row % shape.block_rows == 0 ? 0.0f : y[at - shape.hidden];
            const float added = residual ? residual[at] : 0.0f;
            out[at] = (base[c] + d[tap + group]) * y[at] + (base[shape.hidden + c] + d[tap + groups + group]) * left +
                      added;
        });
    }
};

}  // namespace dflash::cuda
