#include "dflash/lattice.h"

#include <array>
#include <random>
#include <stdexcept>

#include "check.h"
#include "dflash/verify.h"

using namespace dflash;

namespace {

// Two candidates; the likelier first token leads to the unlikelier second one.
Lattice hand_worked() {
    Lattice lattice(7, 2);
    lattice.add_position({10, 20}, {2.0f, 1.0f});
    lattice.add_position({30, 40}, {0.0f, 1.0f, 5.0f, 0.0f});
    lattice.add_position({50, 60}, {1.0f, 3.0f, 4.0f, 2.0f});
    return lattice;
}

}  // namespace

TEST(greedy_walk_takes_the_best_successor_of_each_token) {
    const Path path = hand_worked().walk({});
    CHECK((path.tokens == Tokens{10, 40, 50}));
    // softmax(2, 1), softmax(0, 1), softmax(4, 2)
    CHECK(std::fabs(path.probabilities[0] - 0.731059f) < 1e-5f);
    CHECK(std::fabs(path.probabilities[1] - 0.731059f) < 1e-5f);
    CHECK(std::fabs(path.probabilities[2] - 0.880797f) < 1e-5f);
    CHECK(path.q[1][0].token == 30 && std::fabs(path.q[1][0].probability - 0.268941f) < 1e-5f);
}

TEST(walk_goes_on_from_any_position_with_any_predecessor) {
    WalkOptions options;
    options.first_position = 2;
    options.predecessor = 20;
    CHECK((hand_worked().walk(options).tokens == Tokens{30, 60}));
    options.n_tokens = 1;
    CHECK((hand_worked().walk(options).tokens == Tokens{30}));
    // A stranger's row is the mean: (2.5, 0.5).
    CHECK((hand_worked().row(2, 999) == std::vector<float>{2.5f, 0.5f}));
    options.n_tokens = 0;
    CHECK(hand_worked().walk(options).tokens.empty());
}

TEST(a_strangers_row_follows_from_the_codebooks) {
    struct Rows : Codebooks {
        int rank() const override { return 2; }
        std::vector<float> predecessor(Token token) const override { return {float(token), 1.0f}; }
        std::vector<float> successor(Token token) const override { return {1.0f, float(token)}; }
    };
    Lattice lattice(7, 2, std::make_shared<Rows>());
    lattice.add_position({1, 2}, {0.0f, 0.0f}, {0.5f, 0.25f}, {2.0f, 3.0f});
    // U + <(999, 1) * (2, 3), (1, b)> = U + 1998 + 3 b
    CHECK((lattice.row(1, 999) == std::vector<float>{2001.5f, 2004.25f}));
    CHECK((lattice.row(1, 7) == std::vector<float>{0.0f, 0.0f}));  // the anchor's row is the pass's own
    CHECK_THROWS(std::invalid_argument, (lattice.add_position({1, 2}, {0, 0, 0, 0}, {1.0f}, {1.0f, 1.0f}), 0));
    CHECK_THROWS(std::invalid_argument, (lattice.add_position({1, 2}, {0, 0, 0, 0}, {1.0f, 1.0f}, {1.0f}), 0));
}

TEST(bad_positions_and_shapes_are_refused) {
    Lattice lattice(7, 2);
    CHECK_THROWS(std::invalid_argument, Lattice(7, 0));
    CHECK_THROWS(std::invalid_argument, (lattice.add_position({1, 2, 3}, {0, 0}), 0));
    CHECK_THROWS(std::invalid_argument, (lattice.add_position({1, 2}, {0, 0, 0, 0}), 0));
    lattice.add_position({1, 2}, {0, 0});
    CHECK_THROWS(std::invalid_argument, (lattice.add_position({1, 2}, {0, 0}), 0));
    CHECK_THROWS(std::invalid_argument, lattice.row(0, 7));
    CHECK_THROWS(std::invalid_argument, lattice.row(2, 7));
}

TEST(damage_is_seen) {
    Lattice lattice(7, 2);
    lattice.add_position({1, 2}, {-INFINITY, 0.0f});
    CHECK(lattice.finite());
    lattice.add_position({1, 2}, {0.0f, NAN, 0.0f, 0.0f});
    CHECK(!lattice.finite());
}

TEST(greedy_walk_agrees_with_brute_force_on_random_lattices) {
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    for (int round = 0; round < 50; ++round) {
        const int k = 3;
        Lattice lattice(0, k);
        std::vector<std::vector<float>> all;
        for (int position = 0; position < 4; ++position) {
            std::vector<float> scores(position == 0 ? k : k * k);
            for (float & score : scores) {
                score = normal(random);
            }
            all.push_back(scores);
            lattice.add_position({10 * position, 10 * position + 1, 10 * position + 2}, scores);
        }
        Tokens expected;
        int before = 0;
        for (int position = 0; position < 4; ++position) {
            int best = 0;
            for (int i = 1; i < k; ++i) {
                if (all[position][before * k + i] > all[position][before * k + best]) {
                    best = i;
                }
            }
            expected.push_back(10 * position + best);
            before = best;
        }
        CHECK(lattice.walk({}).tokens == expected);
    }
}

TEST(sampled_walks_have_the_probabilities_of_q) {
    const Lattice lattice = hand_worked();
    const double temperature = 1.3;
    const auto share = [temperature](double a, double b) { return 1.0 / (1.0 + std::exp((b - a) / temperature)); };
    // P(10, 30, 50) and so on, by hand: first row, then the row of the token before.
    const std::array<double, 8> expected = {
        share(2, 1) * share(0, 1) * share(1, 3), share(2, 1) * share(0, 1) * share(3, 1),
        share(2, 1) * share(1, 0) * share(4, 2), share(2, 1) * share(1, 0) * share(2, 4),
        share(1, 2) * share(5, 0) * share(1, 3), share(1, 2) * share(5, 0) * share(3, 1),
        share(1, 2) * share(0, 5) * share(4, 2), share(1, 2) * share(0, 5) * share(2, 4)};
    std::array<int, 8> counts{};
    const int n = 40000;
    for (int seed = 0; seed < n; ++seed) {
        WalkOptions options;
        options.temperature = static_cast<float>(temperature);
        options.seed = static_cast<std::uint64_t>(seed);
        const Tokens t = lattice.walk(options).tokens;
        ++counts[(t[0] == 20) * 4 + (t[1] == 40) * 2 + (t[2] == 60)];
    }
    double chi_square = 0.0;
    for (std::size_t i = 0; i < 8; ++i) {
        chi_square += (counts[i] - n * expected[i]) * (counts[i] - n * expected[i]) / (n * expected[i]);
    }
    CHECK(chi_square < 24.3);  // 7 degrees of freedom, 0.1%
}

// Rejection sampling: whatever q proposes, the committed tokens have the distribution p. All outcomes of two
// tokens over a vocabulary of three, against their exact probabilities.
TEST(rejection_commits_the_targets_distribution_whatever_was_drafted) {
    const std::vector<TokenProbability> first = {{0, 0.6f}, {1, 0.3f}, {2, 0.1f}};
    const auto second = [](Token after) {
        return std::vector<TokenProbability>{{0, after == 0 ? 0.2f : 0.5f}, {1, 0.3f}, {2, after == 0 ? 0.5f : 0.2f}};
    };
    const std::vector<TokenProbability> q1 = {{0, 0.1f}, {1, 0.2f}, {2, 0.7f}};
    const std::vector<TokenProbability> q2 = {{0, 0.9f}, {2, 0.1f}};
    for (const bool certain : {false, true}) {
        std::array<int, 9> counts{};
        const int n = 60000;
        for (int seed = 0; seed < n; ++seed) {
            // Draft by q with noise of its own, as a drafter of another seed would.
            Lattice lattice(0, 3);
            lattice.add_position({0, 1, 2}, {std::log(0.1f), std::log(0.2f), std::log(0.7f)});
            lattice.add_position({0, 2, 1}, {std::log(0.9f), std::log(0.1f), -INFINITY, std::log(0.9f),
                                             std::log(0.1f), -INFINITY, std::log(0.9f), std::log(0.1f), -INFINITY});
            WalkOptions options;
            options.temperature = 1.0f;
            options.seed = static_cast<std::uint64_t>(seed) + 1000000;
            const Tokens draft = certain ? Tokens{2, 0} : lattice.walk(options).tokens;
            std::vector<std::vector<TokenProbability>> q;
            if (!certain) {
                q = {q1, q2};
            }
            Tokens text;
            const auto target = [&](int i) {
                return i == 0 ? first : second(draft[static_cast<std::size_t>(i) - 1]);
            };
            const auto never = [](Token) { return false; };
            text = verify_by_rejection(draft, q, target, never, static_cast<std::uint64_t>(seed), 5).tokens;
            if (text.size() == 1) {
                // The second token comes from the next step, without a draft.
                const Token after = text[0];
                const auto next = verify_by_rejection(
                    {}, {}, [&](int) { return second(after); }, never, static_cast<std::uint64_t>(seed), 6);
                text.push_back(next.tokens[0]);
            }
            ++counts[static_cast<std::size_t>(text[0] * 3 + text[1])];
        }
        double chi_square = 0.0;
        for (int a = 0; a < 3; ++a) {
            for (int b = 0; b < 3; ++b) {
                const double p = first[static_cast<std::size_t>(a)].probability *
                                 second(a)[static_cast<std::size_t>(b)].probability;
                const double seen = counts[static_cast<std::size_t>(a * 3 + b)];
                chi_square += (seen - n * p) * (seen - n * p) / (n * p);
            }
        }
        CHECK(chi_square < 26.1);  // 8 degrees of freedom, 0.1%
    }
}

TEST(rejection_accepts_everything_where_q_is_p) {
    const std::vector<TokenProbability> p = {{0, 0.6f}, {1, 0.4f}};
    for (std::uint64_t seed = 0; seed < 200; ++seed) {
        const Verdict verdict =
            verify_by_rejection({1, 0}, {p, p}, [&p](int) { return p; }, [](Token) { return false; }, seed, 3);
        CHECK(verdict.n_accepted == 2);
        CHECK(verdict.tokens.size() == 3);
    }
}

int main() { return check::run(); }
