// Random inputs for the kernels, and what their references say of them: shared by the host's and the device's test.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "dflash/lattice.h"
#include "dflash/two_tap_conv.h"
#include "dflash/verify.h"

namespace cases {

using dflash::Token;
using dflash::Tokens;

inline std::vector<float> normal(std::mt19937 & random, std::size_t n, float scale = 1.0f) {
    std::normal_distribution<float> distribution(0.0f, scale);
    std::vector<float> values(n);
    for (float & value : values) {
        value = distribution(random);
    }
    return values;
}

inline std::vector<float> softmax(const float * logits, std::size_t n, float temperature) {
    float largest = -HUGE_VALF;
    for (std::size_t i = 0; i < n; ++i) {
        largest = std::max(largest, logits[i]);
    }
    double sum = 0.0;
    std::vector<float> result(n);
    for (std::size_t i = 0; i < n; ++i) {
        sum += std::exp((double(logits[i]) - largest) / temperature);
    }
    for (std::size_t i = 0; i < n; ++i) {
        result[i] = static_cast<float>(std::exp((double(logits[i]) - largest) / temperature) / sum);
    }
    return result;
}

struct DenseCodebooks : dflash::Codebooks {
    int width;
    std::vector<float> before, after;

    DenseCodebooks(int rank, std::vector<float> a, std::vector<float> b)
        : width(rank), before(std::move(a)), after(std::move(b)) {}
    int rank() const override { return width; }
    std::vector<float> predecessor(Token token) const override { return row(before, token); }
    std::vector<float> successor(Token token) const override { return row(after, token); }

    std::vector<float> row(const std::vector<float> & of, Token token) const {
        const auto begin = of.begin() + std::ptrdiff_t(token) * width;
        return {begin, begin + width};
    }
};

struct WalkCase {
    int n_sequences = 3, n_positions = 7, top_k = 16, rank = 20, vocabulary = 61;
    std::vector<std::int32_t> candidates, first;
    std::vector<std::int64_t> anchor_positions;
    std::vector<float> unary, gates, predecessors, successors;

    explicit WalkCase(unsigned seed) {
        std::mt19937 random(seed);
        const auto rows = static_cast<std::size_t>(n_sequences * n_positions);
        unary = normal(random, rows * static_cast<std::size_t>(top_k));
        gates = normal(random, rows * static_cast<std::size_t>(rank));
        predecessors = normal(random, static_cast<std::size_t>(vocabulary * rank), 0.4f);
        successors = normal(random, static_cast<std::size_t>(vocabulary * rank), 0.4f);
        for (std::size_t row = 0; row < rows; ++row) {
            std::vector<std::int32_t> ids(static_cast<std::size_t>(vocabulary));
            for (std::size_t i = 0; i < ids.size(); ++i) {
                ids[i] = static_cast<std::int32_t>(i);
            }
            std::shuffle(ids.begin(), ids.end(), random);
            candidates.insert(candidates.end(), ids.begin(), ids.begin() + top_k);
        }
        for (int s = 0; s < n_sequences; ++s) {
            first.push_back(static_cast<std::int32_t>(random() % static_cast<unsigned>(vocabulary)));
            anchor_positions.push_back(100 + 31 * s);
        }
    }

    // Lattice::walk, through a lattice that knows unary scores and gates alone.
    dflash::Path expected(int sequence, float temperature, std::uint64_t noise_seed) const {
        const auto k = static_cast<std::size_t>(top_k);
        const auto r = static_cast<std::size_t>(rank);
        const auto codebooks = std::make_shared<DenseCodebooks>(rank, predecessors, successors);
        dflash::Lattice lattice(-1, top_k, codebooks);
        dflash::Path path;
        Token predecessor = first[static_cast<std::size_t>(sequence)];
        for (int p = 0; p < n_positions; ++p) {
            const auto row = static_cast<std::size_t>(sequence * n_positions + p);
            const auto part = [row](const auto & of, std::size_t n) {
                return std::vector(of.begin() + static_cast<std::ptrdiff_t>(row * n),
                                   of.begin() + static_cast<std::ptrdiff_t>((row + 1) * n));
            };
            lattice.add_position(part(candidates, k), std::vector<float>((p == 0 ? 1 : k) * k, NAN), part(unary, k),
                                 part(gates, r));
            // Every row is worked out from the codebooks: the predecessor is made out to be no candidate.
            dflash::Lattice here(-1, top_k, codebooks);
            here.add_position(part(candidates, k), std::vector<float>(k, NAN), part(unary, k), part(gates, r));
            dflash::WalkOptions options;
            options.predecessor = predecessor;
            options.n_tokens = 1;
            options.temperature = temperature;
            options.seed = noise_seed;
            options.anchor_position = anchor_positions[static_cast<std::size_t>(sequence)] + p;
            const dflash::Path step = here.walk(options);
            predecessor = step.tokens[0];
            path.tokens.push_back(predecessor);
            path.q.push_back(step.q[0]);
        }
        return path;
    }
};

struct ConvCase {
    dflash::TwoTapConvShape shape{3, 5, 304, 16};  // more channels than a block of threads has, and not a multiple
    std::vector<float> y, base, d, residual;

    explicit ConvCase(unsigned seed) {
        std::mt19937 random(seed);
        const auto rows = static_cast<std::size_t>(shape.n_rows());
        const auto hidden = static_cast<std::size_t>(shape.hidden);
        y = normal(random, rows * hidden);
        residual = normal(random, rows * hidden);
        base = normal(random, 2 * hidden);
        d = normal(random, rows * 4 * static_cast<std::size_t>(shape.n_groups()));
    }
};

// Three sequences, of 4, 0 and 6 draft tokens, whose q is near p: some stand, some do not.
struct VerifyCase {
    int vocabulary = 523, n_q = 12;
    std::vector<std::int32_t> first_rows{0, 5, 6, 13}, draft, q_tokens, ends{7};
    std::vector<float> logits, q;
    std::vector<std::int64_t> positions{40, 9, 77};
    int n_rows = 13;

    VerifyCase(unsigned seed, float temperature) {
        std::mt19937 random(seed);
        const auto v = static_cast<std::size_t>(vocabulary);
        logits = normal(random, static_cast<std::size_t>(n_rows) * v, 3.0f);
        draft.assign(static_cast<std::size_t>(n_rows), 0);
        q.assign(static_cast<std::size_t>(n_rows * n_q), 0.0f);
        q_tokens.assign(static_cast<std::size_t>(n_rows * n_q), 0);
        for (int row = 1; row < n_rows; ++row) {
            // The draft of `row` is judged by the row before it.
            const float * before = &logits[static_cast<std::size_t>(row - 1) * v];
            std::vector<std::int32_t> ids(v);
            for (std::size_t i = 0; i < v; ++i) {
                ids[i] = static_cast<std::int32_t>(i);
            }
            std::partial_sort(ids.begin(), ids.begin() + n_q, ids.end(),
                              [before](std::int32_t a, std::int32_t b) { return before[a] > before[b]; });
            std::vector<float> scores;
            for (int i = 0; i < n_q; ++i) {
                scores.push_back(before[ids[static_cast<std::size_t>(i)]] + normal(random, 1, 0.5f)[0]);
            }
            const std::vector<float> p = softmax(scores.data(), scores.size(), temperature > 0 ? temperature : 1.0f);
            for (int i = 0; i < n_q; ++i) {
                q_tokens[static_cast<std::size_t>(row * n_q + i)] = ids[static_cast<std::size_t>(i)];
                q[static_cast<std::size_t>(row * n_q + i)] = p[static_cast<std::size_t>(i)];
            }
            std::discrete_distribution<int> choose(p.begin(), p.end());
            draft[static_cast<std::size_t>(row)] =
                temperature > 0.0f || random() % 4 == 0 ? ids[static_cast<std::size_t>(choose(random))] : ids[0];
        }
    }

    dflash::Verdict expected(int sequence, float temperature, std::uint64_t seed) const {
        const int first = first_rows[static_cast<std::size_t>(sequence)];
        const int end = first_rows[static_cast<std::size_t>(sequence + 1)];
        const auto v = static_cast<std::size_t>(vocabulary);
        const Tokens drafted(draft.begin() + first + 1, draft.begin() + end);
        const auto row = [&](int i) { return &logits[static_cast<std::size_t>(first + i) * v]; };
        const auto is_end = [this](Token token) { return token == ends[0]; };
        if (temperature <= 0.0f) {
            const auto argmax = [&](int i) {
                return static_cast<Token>(std::max_element(row(i), row(i) + v) - row(i));
            };
            return dflash::verify(drafted, argmax, is_end);
        }
        std::vector<std::vector<dflash::TokenProbability>> of_draft;
        for (int r = first + 1; r < end; ++r) {
            of_draft.emplace_back();
            for (int i = 0; i < n_q; ++i) {
                const auto at = static_cast<std::size_t>(r * n_q + i);
                of_draft.back().push_back({q_tokens[at], q[at]});
            }
        }
        const auto distribution = [&](int i) {
            const std::vector<float> p = softmax(row(i), v, temperature);
            std::vector<dflash::TokenProbability> result;
            for (std::size_t id = 0; id < v; ++id) {
                result.push_back({static_cast<Token>(id), p[id]});
            }
            return result;
        };
        return dflash::verify_by_rejection(drafted, of_draft, distribution, is_end, seed,
                                           positions[static_cast<std::size_t>(sequence)]);
    }
};

}  // namespace cases
