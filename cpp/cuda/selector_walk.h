// The selector's walk on the device: a block of the drafter, position by position, with the scores of the chosen
// predecessor only. K scores a position instead of K x K, and of the result only tokens and q leave the device.
//
// S_t(a, b) = U_t(b) + <A[a] * gate_t, B[b]>, gate_t = H h_t; greedy: the largest; at temperature T: the largest of
// S / T + Gumbel noise, which is a draw from q = softmax(S / T). The reference is Lattice::walk with codebooks.

#pragma once

#include <cmath>
#include <cstdint>

#include "cuda/portable.h"
#include "dflash/noise.h"

namespace dflash::cuda {

struct SelectorWalk {
    static constexpr int max_top_k = 32;
    static constexpr int lanes = 8;  // threads that share a candidate's dot product

    const std::int32_t * candidates;        // [n_sequences][n_positions][top_k]
    const float * unary;                    // [n_sequences][n_positions][top_k]
    const float * gates;                    // [n_sequences][n_positions][rank]
    const float * predecessors;             // [vocabulary][rank], codebook A
    const float * successors;               // [vocabulary][rank], codebook B
    const std::int32_t * first;             // [n_sequences] the token before position 1
    const std::int64_t * anchor_positions;  // [n_sequences] index of the anchor in its text: keys the noise
    int n_positions;
    int top_k;  // <= max_top_k
    int rank;
    float temperature;  // 0: greedy; q is then the softmax at temperature 1
    std::uint64_t seed;
    std::int32_t * tokens;  // out [n_sequences][n_positions]
    float * q;              // out [n_sequences][n_positions][top_k]; may be null

    struct Shared {
        float partial[max_top_k * lanes];
        float scores[max_top_k];
        std::int32_t predecessor;
    };

    DFLASH_HD int n_threads() const { return top_k * lanes; }

    // A block per sequence.
    template <class Block>
    DFLASH_HD void run(int sequence, Shared & shared, const Block & each_thread) const {
        each_thread([&](int thread) {
            if (thread == 0) {
                shared.predecessor = first[sequence];
            }
        });
        for (int position = 0; position < n_positions; ++position) {
            const std::int64_t row = std::int64_t(sequence) * n_positions + position;
            each_thread([&](int thread) {
                const int b = thread / lanes;
                const float * before = predecessors + std::int64_t(shared.predecessor) * rank;
                const float * after = successors + std::int64_t(candidates[row * top_k + b]) * rank;
                const float * gate = gates + row * rank;
                float sum = 0.0f;
                for (int r = thread % lanes; r < rank; r += lanes) {
                    sum += before[r] * gate[r] * after[r];
                }
                shared.partial[thread] = sum;
            });
            each_thread([&](int thread) {
                if (thread < top_k) {
                    float score = unary[row * top_k + thread];
                    for (int lane = 0; lane < lanes; ++lane) {
                        score += shared.partial[thread * lanes + lane];
                    }
                    shared.scores[thread] = score;
                }
            });
            each_thread([&](int thread) {
                if (thread == 0) {
                    choose(row, anchor_positions[sequence] + position + 1, shared);
                }
            });
        }
    }

private:
    // K is small: one thread draws.
    DFLASH_HD void choose(std::int64_t row, std::int64_t position, Shared & shared) const {
        const std::int32_t * ids = candidates + row * top_k;
        const bool greedy = temperature <= 0.0f;
        const double scale = greedy ? 1.0 : 1.0 / temperature;
        const GumbelNoise noise(seed, position);
        double top = -HUGE_VAL;
        for (int i = 0; i < top_k; ++i) {
            top = shared.scores[i] * scale > top ? shared.scores[i] * scale : top;
        }
        double total = 0.0;
        double best_score = -HUGE_VAL;
        int best = 0;
        for (int i = 0; i < top_k; ++i) {
            const double score = shared.scores[i] * scale;
            total += ::exp(score - top);
            const double noised = greedy ? score : score + noise(ids[i]);
            if (noised > best_score || (noised == best_score && ids[i] < ids[best])) {
                best = i;
                best_score = noised;
            }
        }
        if (q) {
            for (int i = 0; i < top_k; ++i) {
                q[row * top_k + i] = static_cast<float>(::exp(shared.scores[i] * scale - top) / total);
            }
        }
        tokens[row] = ids[best];
        shared.predecessor = ids[best];
    }
};

}  // namespace dflash::cuda
