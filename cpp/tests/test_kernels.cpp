// The device's kernels on the host: their bodies, block by block and thread by thread, in several orders, against the
// plain references. An order that changes the result is a race.

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <stdexcept>

#include "check.h"
#include "cuda/kernel_cases.h"
#include "cuda/selector_walk.h"
#include "cuda/two_tap_conv.h"
#include "cuda/verify_rows.h"

using namespace dflash::cuda;

namespace {

std::vector<HostBlock> orders(int n_threads) {
    std::vector<int> order(static_cast<std::size_t>(n_threads));
    std::iota(order.begin(), order.end(), 0);
    std::vector<HostBlock> result{{order}};
    std::reverse(order.begin(), order.end());
    result.push_back({order});
    std::mt19937 random(3);
    std::shuffle(order.begin(), order.end(), random);
    result.push_back({order});
    return result;
}

// Runs a kernel's blocks on the host; shared memory begins as garbage, as on the device.
template <class Kernel>
void emulate(const Kernel & kernel, int n_blocks, const HostBlock & block) {
    for (int i = 0; i < n_blocks; ++i) {
        typename Kernel::Shared shared;
        std::fill_n(reinterpret_cast<unsigned char *>(&shared), sizeof(shared), static_cast<unsigned char>(0xa5));
        kernel.run(i, shared, block);
    }
}

struct VerdictOf {
    std::vector<std::int32_t> n_accepted, bonus;
};

VerdictOf verdict(const cases::VerifyCase & c, float temperature, std::uint64_t seed, int n_q, int which_order) {
    std::vector<RowSummary> rows(static_cast<std::size_t>(c.n_rows));
    VerdictOf out{std::vector<std::int32_t>(3, -9), std::vector<std::int32_t>(3, -9)};
    const auto order = [which_order](int n) { return orders(n)[static_cast<std::size_t>(which_order)]; };
    emulate(RowStats{c.logits.data(), c.vocabulary, temperature, rows.data()}, c.n_rows, order(RowStats::n_threads));
    const Verification v{c.logits.data(),
                         rows.data(),
                         c.draft.data(),
                         c.first_rows.data(),
                         c.q_tokens.data(),
                         c.q.data(),
                         n_q,
                         c.vocabulary,
                         temperature,
                         seed,
                         c.positions.data(),
                         c.ends.data(),
                         1,
                         out.n_accepted.data(),
                         out.bonus.data()};
    emulate(Judge{v}, 3, order(Judge::n_threads));
    if (temperature > 0.0f) {
        emulate(Bonus{v}, 3, order(Bonus::n_threads));
    }
    return out;
}

void check_verdicts(const cases::VerifyCase & c, float temperature, std::uint64_t seed, int & n_accepted) {
    for (int which = 0; which < 3; ++which) {
        const VerdictOf found = verdict(c, temperature, seed, c.n_q, which);
        for (int s = 0; s < 3; ++s) {
            const dflash::Verdict expected = c.expected(s, temperature, seed);
            const auto at = static_cast<std::size_t>(s);
            CHECK(found.n_accepted[at] == expected.n_accepted);
            const bool ended = static_cast<int>(expected.tokens.size()) == expected.n_accepted;
            CHECK(found.bonus[at] == (ended ? -1 : expected.tokens.back()));
            n_accepted += found.n_accepted[at];
        }
    }
}

}  // namespace

TEST(a_walk_is_the_lattices) {
    for (const float temperature : {0.0f, 0.7f, 1.3f}) {
        for (unsigned seed = 0; seed < 8; ++seed) {
            const cases::WalkCase c(seed);
            for (const HostBlock & order : orders(c.top_k * SelectorWalk::lanes)) {
                const auto rows = static_cast<std::size_t>(c.n_sequences * c.n_positions);
                std::vector<std::int32_t> tokens(rows, -1);
                std::vector<float> q(rows * static_cast<std::size_t>(c.top_k), -1.0f);
                const SelectorWalk kernel{c.candidates.data(),
                                          c.unary.data(),
                                          c.gates.data(),
                                          c.predecessors.data(),
                                          c.successors.data(),
                                          c.first.data(),
                                          c.anchor_positions.data(),
                                          c.n_positions,
                                          c.top_k,
                                          c.rank,
                                          temperature,
                                          seed,
                                          tokens.data(),
                                          q.data()};
                CHECK(kernel.n_threads() == static_cast<int>(order.order.size()));
                emulate(kernel, c.n_sequences, order);
                for (int s = 0; s < c.n_sequences; ++s) {
                    const dflash::Path expected = c.expected(s, temperature, seed);
                    for (int p = 0; p < c.n_positions; ++p) {
                        const auto row = static_cast<std::size_t>(s * c.n_positions + p);
                        CHECK(tokens[row] == expected.tokens[static_cast<std::size_t>(p)]);
                        for (int i = 0; i < c.top_k; ++i) {
                            const float found =
                                q[row * static_cast<std::size_t>(c.top_k) + static_cast<std::size_t>(i)];
                            const float wanted =
                                expected.q[static_cast<std::size_t>(p)][static_cast<std::size_t>(i)].probability;
                            CHECK(std::fabs(found - wanted) < 1e-5f);
                        }
                    }
                }
            }
        }
    }
}

TEST(a_convolution_is_the_references) {
    for (const dflash::ConvSide side : {dflash::ConvSide::before, dflash::ConvSide::after}) {
        for (const bool with_residual : {false, true}) {
            const cases::ConvCase c(5);
            const std::vector<float> expected = dflash::two_tap_conv(
                c.shape, side, c.y, c.base, c.d, with_residual ? c.residual : std::vector<float>{});
            for (const HostBlock & order : orders(TwoTapConv::n_threads)) {
                std::vector<float> out(c.y.size(), NAN);
                const TwoTapConv kernel{c.shape,       side,       c.y.data(),
                                        c.base.data(), c.d.data(), with_residual ? c.residual.data() : nullptr,
                                        out.data()};
                CHECK(kernel.n_blocks() == c.shape.n_rows() * 2);
                emulate(kernel, kernel.n_blocks(), order);
                for (std::size_t i = 0; i < out.size(); ++i) {
                    CHECK(std::fabs(out[i] - expected[i]) < 1e-5f);
                }
            }
        }
    }
}

TEST(a_convolution_reads_zero_left_of_each_block) {
    const dflash::TwoTapConvShape shape{2, 2, 1, 1};
    // base 1 and 1, no dynamic part: each row is itself plus the one before it.
    const std::vector<float> out =
        dflash::two_tap_conv(shape, dflash::ConvSide::before, {1, 2, 3, 4}, {1, 1}, std::vector<float>(16, 0.0f), {});
    CHECK((out == std::vector<float>{1, 3, 3, 7}));
    const std::vector<float> one{1}, two{1, 1}, none;
    CHECK_THROWS(std::invalid_argument, dflash::two_tap_conv(shape, dflash::ConvSide::before, one, two, none, none));
}

TEST(greedy_verdicts_are_the_references) {
    int n_accepted = 0;
    for (unsigned seed = 0; seed < 40; ++seed) {
        check_verdicts(cases::VerifyCase(seed, 0.0f), 0.0f, seed, n_accepted);
    }
    CHECK(n_accepted > 200);
}

TEST(verdicts_by_rejection_are_the_references) {
    int n_accepted = 0;
    for (const float temperature : {0.6f, 1.0f}) {
        for (unsigned seed = 0; seed < 40; ++seed) {
            check_verdicts(cases::VerifyCase(seed, temperature), temperature, seed, n_accepted);
        }
    }
    CHECK(n_accepted > 300);
}

TEST(equal_logits_go_to_the_smallest_id) {
    const std::vector<float> logits(300, 1.5f);
    RowSummary row{};
    for (const HostBlock & order : orders(RowStats::n_threads)) {
        emulate(RowStats{logits.data(), 300, 0.0f, &row}, 1, order);
        CHECK(row.argmax == 0 && row.largest == 1.5f);
    }
}

TEST(an_end_is_the_last_token) {
    cases::VerifyCase c(1, 0.0f);
    const auto best = [&c](int row) {
        const float * logits = &c.logits[static_cast<std::size_t>(row * c.vocabulary)];
        return static_cast<std::int32_t>(std::max_element(logits, logits + c.vocabulary) - logits);
    };
    for (int row = 1; row < 5; ++row) {
        c.draft[static_cast<std::size_t>(row)] = best(row - 1);
    }
    c.ends[0] = c.draft[2];
    const VerdictOf found = verdict(c, 0.0f, 0, c.n_q, 0);
    CHECK(found.n_accepted[0] == 2 && found.bonus[0] == -1);
}

int main() { return check::run(); }
