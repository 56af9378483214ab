// Verification on the device: of n rows of logits over the whole vocabulary only the verdict crosses the bus.
//
// Three kernels in a row. RowStats reduces each row: its largest logit, where, and the sum of exponentials. Judge walks
// the rows of a sequence: how many draft tokens stand. Bonus draws the token that follows them. Greedy needs the first
// two: its bonus is the argmax. Rejection sampling is Leviathan, Kalman, Matias 2023 with p = softmax(logits / T); the
// draws are argmaxima of log weight plus Gumbel noise, keyed as on the host.
//
// The references are dflash::verify and dflash::verify_by_rejection.

#pragma once

#include <cmath>
#include <cstdint>

#include "cuda/portable.h"
#include "dflash/noise.h"

namespace dflash::cuda {

struct RowSummary {
    float largest;        // logit
    std::int32_t argmax;  // the smallest id where several are largest
    double sum;           // of exp((logit - largest) / T)
};

// Streams of noise, as in verify.cpp.
constexpr std::uint64_t accept_stream = 0x5bd1e9955bd1e995ull;
constexpr std::uint64_t residual_stream = 0xc2b2ae3d27d4eb4full;

struct RowStats {
    static constexpr int n_threads = 256;  // a power of two

    const float * logits;  // [n_rows][vocabulary]
    int vocabulary;
    float temperature;  // 0: sum is left alone
    RowSummary * out;   // [n_rows]

    struct Shared {
        float largest[n_threads];
        std::int32_t argmax[n_threads];
        double sum[n_threads];
    };

    // A block per row.
    template <class Block>
    DFLASH_HD void run(int row, Shared & shared, const Block & each_thread) const {
        const float * mine = logits + std::int64_t(row) * vocabulary;
        each_thread([&](int thread) {
            float largest = -HUGE_VALF;
            std::int32_t argmax = vocabulary;
            for (int token = thread; token < vocabulary; token += n_threads) {
                if (mine[token] > largest || argmax == vocabulary) {
                    largest = mine[token];
                    argmax = token;
                }
            }
            shared.largest[thread] = largest;
            shared.argmax[thread] = argmax;
        });
        for (int half = n_threads / 2; half > 0; half /= 2) {
            each_thread([&](int thread) {
                if (thread < half && better(shared, thread + half, thread)) {
                    shared.largest[thread] = shared.largest[thread + half];
                    shared.argmax[thread] = shared.argmax[thread + half];
                }
            });
        }
        if (temperature > 0.0f) {
            each_thread([&](int thread) {
                double sum = 0.0;
                for (int token = thread; token < vocabulary; token += n_threads) {
                    sum += ::exp((double(mine[token]) - shared.largest[0]) / temperature);
                }
                shared.sum[thread] = sum;
            });
            for (int half = n_threads / 2; half > 0; half /= 2) {
                each_thread([&](int thread) {
                    if (thread < half) {
                        shared.sum[thread] += shared.sum[thread + half];
                    }
                });
            }
        }
        each_thread([&](int thread) {
            if (thread == 0) {
                out[row] = {shared.largest[0], shared.argmax[0], temperature > 0.0f ? shared.sum[0] : 0.0};
            }
        });
    }

private:
    DFLASH_HD static bool better(const Shared & shared, int a, int b) {
        return shared.largest[a] > shared.largest[b] ||
               (shared.largest[a] == shared.largest[b] && shared.argmax[a] < shared.argmax[b]);
    }
};

// What one verification is about, for any number of sequences: rows [first_rows[s], first_rows[s + 1]) are those of
// sequence s, the anchor's first; row r > first is drafted by draft[r].
struct Verification {
    const float * logits;             // [n_rows][vocabulary]
    const RowSummary * rows;          // [n_rows]
    const std::int32_t * draft;       // [n_rows]; the anchors' entries are not read
    const std::int32_t * first_rows;  // [n_sequences + 1]
    // q of the draft's tokens: [n_rows][n_q] ids and probabilities, of the row's draft token; n_q 0: drafted with
    // certainty. Not read where temperature is 0.
    const std::int32_t * q_tokens;
    const float * q;
    int n_q;
    int vocabulary;
    float temperature;  // 0: greedy
    std::uint64_t seed;
    const std::int64_t * positions;  // [n_sequences] index in its text of the first draft token
    const std::int32_t * ends;       // [n_ends] tokens that end a text
    int n_ends;
    std::int32_t * n_accepted;  // out [n_sequences]
    std::int32_t * bonus;       // out [n_sequences]; -1 where an accepted token ends the text

    DFLASH_HD double probability(int row, std::int32_t token) const {
        const float logit = logits[std::int64_t(row) * vocabulary + token];
        return ::exp((double(logit) - rows[row].largest) / temperature) / rows[row].sum;
    }

    // q of a token as the draft of `row`.
    DFLASH_HD float drafted(int row, std::int32_t token) const {
        if (n_q == 0) {
            return token == draft[row] ? 1.0f : 0.0f;
        }
        for (int i = 0; i < n_q; ++i) {
            if (q_tokens[std::int64_t(row) * n_q + i] == token) {
                return q[std::int64_t(row) * n_q + i];
            }
        }
        return 0.0f;
    }

    DFLASH_HD bool is_end(std::int32_t token) const {
        for (int i = 0; i < n_ends; ++i) {
            if (ends[i] == token) {
                return true;
            }
        }
        return false;
    }

    // Whether the target takes the draft token of row + 1, looking at `row`.
    DFLASH_HD bool accepts(int sequence, int row, int index) const {
        const std::int32_t token = draft[row + 1];
        if (temperature <= 0.0f) {
            return rows[row].argmax == token;
        }
        const double u = GumbelNoise(seed ^ accept_stream, positions[sequence] + index).uniform(0);
        return u * drafted(row + 1, token) < static_cast<float>(probability(row, token));
    }
};

struct Judge {
    static constexpr int n_threads = 1;  // a draft is short, each step hangs on the one before

    Verification verification;

    struct Shared {};

    // A block per sequence.
    template <class Block>
    DFLASH_HD void run(int sequence, Shared &, const Block & each_thread) const {
        const Verification & v = verification;
        each_thread([&](int) {
            const int first = v.first_rows[sequence];
            const int n_draft = v.first_rows[sequence + 1] - first - 1;
            int accepted = 0;
            bool ended = false;
            while (!ended && accepted < n_draft && v.accepts(sequence, first + accepted, accepted)) {
                ended = v.is_end(v.draft[first + accepted + 1]);
                ++accepted;
            }
            v.n_accepted[sequence] = accepted;
            v.bonus[sequence] = ended ? -1 : v.rows[first + accepted].argmax;
        });
    }
};

// Above temperature 0, the bonus: a draw from the normalised (p - q)+ where a draft token was refused, from p where
// none was left. Replaces what Judge put there.
struct Bonus {
    static constexpr int n_threads = 256;  // a power of two

    Verification verification;

    struct Shared {
        double score[n_threads];
        std::int32_t token[n_threads];
    };

    // A block per sequence.
    template <class Block>
    DFLASH_HD void run(int sequence, Shared & shared, const Block & each_thread) const {
        const Verification & v = verification;
        if (v.bonus[sequence] < 0) {
            return;
        }
        const int first = v.first_rows[sequence];
        const int accepted = v.n_accepted[sequence];
        const int row = first + accepted;
        const bool refused = row + 1 < v.first_rows[sequence + 1];
        const GumbelNoise noise(v.seed ^ residual_stream, v.positions[sequence] + accepted);
        draw(row, refused, noise, shared, each_thread);
        if (shared.token[0] < 0) {  // p <= q everywhere: p = q up to rounding, and p is right
            draw(row, false, noise, shared, each_thread);
        }
        each_thread([&](int thread) {
            if (thread == 0) {
                v.bonus[sequence] = shared.token[0];
            }
        });
    }

private:
    template <class Block>
    DFLASH_HD void draw(int row, bool residual, const GumbelNoise & noise, Shared & shared,
                        const Block & each_thread) const {
        const Verification & v = verification;
        each_thread([&](int) {});  // everybody has read the last draw
        each_thread([&](int thread) {
            double best = -HUGE_VAL;
            std::int32_t token = -1;
            for (int id = thread; id < v.vocabulary; id += n_threads) {
                float weight = static_cast<float>(v.probability(row, id));
                if (residual) {
                    weight -= v.drafted(row + 1, id);
                }
                if (weight > 0.0f) {
                    const double score = ::log(double(weight)) + noise(id);
                    if (score > best) {
                        best = score;
                        token = id;
                    }
                }
            }
            shared.score[thread] = best;
            shared.token[thread] = token;
        });
        for (int half = n_threads / 2; half > 0; half /= 2) {
            each_thread([&](int thread) {
                const int other = thread + half;
                if (thread < half && shared.token[other] >= 0 &&
                    (shared.token[thread] < 0 || shared.score[other] > shared.score[thread] ||
                     (shared.score[other] == shared.score[thread] && shared.token[other] < shared.token[thread]))) {
                    shared.score[thread] = shared.score[other];
                    shared.token[thread] = shared.token[other];
                }
            });
        }
    }
};

}  // namespace dflash::cuda
