// The small nouns: cost model, text stream, noise, verdict.

#include <array>
#include <functional>
#include <stdexcept>

#include "check.h"
#include "dflash/acceptance.h"
#include "dflash/cost_model.h"
#include "dflash/memory.h"
#include "dflash/noise.h"
#include "dflash/text_stream.h"
#include "dflash/verify.h"

using namespace dflash;

TEST(cost_is_interpolated_between_measured_sizes) {
    CostModel cost;
    cost.observe(1, 10.0);
    cost.observe(5, 30.0);
    CHECK(cost.verify_us(1) == 10.0);
    CHECK(cost.verify_us(3) == 20.0);
    CHECK(cost.verify_us(5) == 30.0);
    CHECK(cost.verify_us(6) > 30.0);
    cost.observe(1, -1.0);
    cost.observe(0, 5.0);
    CHECK(cost.verify_us(1) == 10.0);
}

TEST(one_slow_pass_does_not_upset_the_cost) {
    CostModel cost;
    for (int i = 0; i < 50; ++i) {
        cost.observe(1, 10.0);
    }
    cost.observe(1, 10000.0);
    CHECK(cost.verify_us(1) < 12.0);
}

TEST(a_busy_machine_changes_the_scale_not_the_multiples) {
    CostModel cost;
    cost.observe(1, 10.0);
    cost.observe(8, 30.0);
    for (int i = 0; i < 60; ++i) {
        cost.observe(1, 20.0);
    }
    CHECK(std::fabs(cost.verify_us(8) / cost.verify_us(1) - 3.0) < 1e-9);
}

TEST(a_bad_measurement_is_doubted_after_a_while) {
    CostModel cost;
    cost.observe(1, 10.0);
    cost.observe(8, 500.0);
    const std::vector<float> certain(7, 0.99f);
    CHECK(cost.best_width(certain).width < 7);
    const double believed = cost.verify_us(8);
    for (int i = 0; i < 600; ++i) {
        cost.observe(1, 10.0);
    }
    CHECK(cost.verify_us(8) < 0.6 * believed);
}

TEST(width_follows_the_staircase) {
    CostModel cost;
    // Rows come in fours: 4 rows cost little more than 1, the fifth costs a step.
    for (int rows = 1; rows <= 8; ++rows) {
        cost.observe(rows, rows <= 4 ? 10.0 : 25.0);
    }
    const std::vector<float> likely(7, 0.8f);
    CHECK(cost.best_width(likely).width == 3);
    const std::vector<float> certain(7, 0.99f);
    CHECK(cost.best_width(certain).width == 3);  // 3.94 / 10 beats 7.7 / 25
    const std::vector<float> hopeless(7, 0.0f);
    CHECK(cost.best_width(hopeless).width == 0);
    CHECK(cost.best_width({}).width == 0);
}

TEST(expected_gain_is_worked_out_by_hand) {
    CostModel cost;
    cost.observe(1, 10.0);
    cost.observe(2, 12.0);
    cost.observe(3, 14.0);
    // Width 2: (1 + 0.5 + 0.25) / 14 against 1 / 10; width 1: 1.5 / 12.
    const CostModel::Choice choice = cost.best_width({0.5f, 0.5f});
    CHECK(choice.width == 1 || choice.width == 2);
    CHECK(std::fabs(choice.gain - 1.25) < 1e-9);
    CHECK(cost.best_width({0.5f, 0.5f}, [](int) { return 10.0; }).width == 0);
}

TEST(least_width_is_kept_whatever_it_gains) {
    CostModel cost;
    cost.observe(1, 10.0);
    cost.observe(4, 40.0);
    CHECK(cost.best_width({0.1f, 0.1f, 0.1f}).width == 0);
    CHECK(cost.best_width({0.1f, 0.1f, 0.1f}, {}, 2).width == 2);
}

TEST(in_company_a_draft_is_worth_what_the_whole_pass_gains) {
    CostModel cost;
    // Rows are free up to 4, then a step: alone a draft of 3 is free, beside 3 other rows it costs the step.
    for (int rows = 1; rows <= 8; ++rows) {
        cost.observe(rows, rows <= 4 ? 10.0 : 25.0);
    }
    const std::vector<float> likely(3, 0.8f);
    CHECK(cost.best_width(likely).width == 3);
    cost.keep({3, 0, 3});
    CHECK(cost.verify_us(1) == 10.0);
    CHECK(cost.verify_us(2) == 25.0);
    CHECK(cost.best_width(likely).width == 0);  // 4 tokens in 10 beat 4 + 1.95 in 25
    cost.observe(1, 10.0);                      // the pass had four rows
    cost.keep({7, 4, 3});                       // what the others draft is theirs to answer for
    CHECK(cost.verify_us(1) == 10.0);
    CHECK(cost.whole_us(1) == 25.0);
    cost.keep({});
    CHECK(cost.verify_us(4) == 10.0);
}

TEST(acceptance_is_conditional_on_reaching_a_position) {
    Acceptance acceptance;
    CHECK(acceptance.probabilities(2) == std::vector<float>({Acceptance::prior, Acceptance::prior}));
    for (int i = 0; i < 200; ++i) {
        acceptance.observe(i % 2 == 0 ? 2 : 0, 3);  // half fail at once, the others at the third
    }
    const std::vector<float> p = acceptance.probabilities(4);
    CHECK(std::fabs(p[0] - 0.5f) < 0.1f);
    CHECK(p[1] > 0.95f);
    CHECK(p[2] < 0.05f);
    CHECK(p[3] == p[2]);  // never seen: as good as the one before it
    CHECK(acceptance.probabilities(0).empty());
}

TEST(acceptance_follows_what_happens_lately) {
    Acceptance acceptance;
    for (int i = 0; i < 500; ++i) {
        acceptance.observe(1, 1);
    }
    for (int i = 0; i < 200; ++i) {
        acceptance.observe(0, 1);
    }
    CHECK(acceptance.probabilities(1)[0] < 0.1f);
}

TEST(text_ends_before_the_first_stop_string) {
    TextStream text({"STOP", "END"});
    CHECK(text.push("one S") == "one ");
    CHECK(text.push("T") == "");
    CHECK(text.push("A") == "STA");
    CHECK(text.push("xENyE") == "xENy");
    CHECK(text.push("ND and more") == "");
    CHECK(text.stopped());
    CHECK(text.push("later") == "");
    CHECK(text.finish() == "");
}

TEST(half_a_character_is_held_back) {
    TextStream text;
    const std::string euro = "\xe2\x82\xac";
    CHECK(text.push("a" + euro.substr(0, 1)) == "a");
    CHECK(text.push(euro.substr(1, 1)) == "");
    CHECK(text.push(euro.substr(2) + "b") == euro + "b");
    CHECK(text.push("\xf0\x9f") == "");
    CHECK(text.finish() == "\xf0\x9f");
    CHECK(text.push("\xff") == "\xff" || text.finish() == "\xff");  // no UTF-8 at all: not held for ever
}

TEST(what_may_become_a_stop_string_is_shown_when_it_does_not) {
    TextStream text({"abcabd"});
    CHECK(text.push("abcab") == "");
    CHECK(text.push("c") == "abc");
    CHECK(text.finish() == "abc");
    CHECK_THROWS(std::invalid_argument, TextStream({"a", ""}));
}

TEST(noise_depends_on_seed_position_and_token_alone) {
    CHECK(GumbelNoise(1, 2)(3) == GumbelNoise(1, 2)(3));
    CHECK(GumbelNoise(1, 2)(3) != GumbelNoise(1, 2)(4));
    CHECK(GumbelNoise(1, 2)(3) != GumbelNoise(1, 3)(3));
    CHECK(GumbelNoise(1, 2)(3) != GumbelNoise(2, 2)(3));
}

TEST(noise_never_exceeds_its_bound) {
    double sum = 0.0;
    double squares = 0.0;
    const int n = 200000;
    for (int i = 0; i < n; ++i) {
        const GumbelNoise noise(5, i);
        const double g = noise(7);
        CHECK(g <= noise.upper_bound(7));
        sum += g;
        squares += g * g;
    }
    // A standard Gumbel has mean 0.5772 and variance pi^2 / 6 = 1.6449; four standard errors.
    const double mean = sum / n;
    CHECK(std::fabs(mean - 0.57722) < 4 * std::sqrt(1.6449 / n));
    CHECK(std::fabs(squares / n - mean * mean - 1.6449) < 0.05);
}

TEST(gumbel_argmax_draws_from_the_distribution) {
    const std::array<double, 4> p = {0.5, 0.3, 0.15, 0.05};
    std::array<int, 4> counts{};
    const int n = 100000;
    for (int i = 0; i < n; ++i) {
        const GumbelNoise noise(123, i);
        int best = 0;
        for (int t = 1; t < 4; ++t) {
            if (std::log(p[t]) + noise(t) > std::log(p[best]) + noise(best)) {
                best = t;
            }
        }
        ++counts[best];
    }
    double chi_square = 0.0;
    for (int t = 0; t < 4; ++t) {
        chi_square += (counts[t] - n * p[t]) * (counts[t] - n * p[t]) / (n * p[t]);
    }
    CHECK(chi_square < 16.27);  // 3 degrees of freedom, 0.1%
}

// A toy target over 3 tokens whose choice depends on the text so far and, when sampling, on the noise.
static Token toy_target(const Tokens & text, std::uint64_t seed) {
    std::uint64_t state = 17;
    for (const Token token : text) {
        state = state * 31 + static_cast<std::uint64_t>(token) + 1;
    }
    const GumbelNoise noise(seed, static_cast<std::int64_t>(text.size()));
    Token best = 0;
    double best_score = -1e300;
    for (Token token = 0; token < 3; ++token) {
        const double score = std::log(1.0 + static_cast<double>((state >> (7 * token)) % 5)) + noise(token);
        if (score > best_score) {
            best = token;
            best_score = score;
        }
    }
    return best;
}

TEST(every_draft_of_every_length_commits_the_plain_text) {
    const auto never = [](Token) { return false; };
    for (std::uint64_t seed = 0; seed < 40; ++seed) {
        const Tokens prompt = {0, 1, 2};
        Tokens plain = prompt;
        for (int i = 0; i < 5; ++i) {
            plain.push_back(toy_target(plain, seed));
        }
        for (int length = 0; length <= 4; ++length) {
            int n_drafts = 1;
            for (int i = 0; i < length; ++i) {
                n_drafts *= 3;
            }
            for (int code = 0; code < n_drafts; ++code) {
                Tokens draft;
                for (int i = 0, rest = code; i < length; ++i, rest /= 3) {
                    draft.push_back(rest % 3);
                }
                const auto target_token = [&](int i) {
                    Tokens text = prompt;
                    text.insert(text.end(), draft.begin(), draft.begin() + i);
                    return toy_target(text, seed);
                };
                const Verdict verdict = verify(draft, target_token, never);
                CHECK(verdict.tokens.size() == static_cast<std::size_t>(verdict.n_accepted) + 1);
                CHECK(std::equal(verdict.tokens.begin(), verdict.tokens.end(), plain.begin() + 3));
            }
        }
    }
}

TEST(nothing_is_read_past_the_end_of_the_text) {
    int asked = 0;
    const auto target_token = [&asked](int i) {
        ++asked;
        return Token(i == 1 ? 99 : 5);
    };
    const Verdict verdict = verify({5, 99, 5}, target_token, [](Token token) { return token == 99; });
    CHECK((verdict.tokens == Tokens{5, 99}));
    CHECK(verdict.n_accepted == 2);
    CHECK(asked == 2);
}

TEST(available_memory_is_known_and_finite) {
    const std::uint64_t bytes = available_memory();
    CHECK(bytes > std::uint64_t(16) << 20);
    CHECK(bytes < std::uint64_t(1) << 50);
}

int main() { return check::run(); }
