#include "dflash/ngram_map.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <sstream>
#include <stdexcept>

#include "check.h"
#include "dflash/error.h"

using namespace dflash;

namespace {

NgramMapOptions sizes(int size_n, int size_m, int size_n_min) { return {size_n, size_m, size_n_min}; }

std::string temporary(const std::string & name) {
    return (std::filesystem::temp_directory_path() / ("dflash-test-" + std::to_string(::rand()) + name)).string();
}

std::string bytes_of(const std::string & path) {
    std::ifstream in(path, std::ios::binary);
    std::ostringstream bytes;
    bytes << in.rdbuf();
    return bytes.str();
}

// What the table promises about its first proposed token, computed by searching the whole text: the longest
// ladder key that ends the text and occurred before; of its followers the most frequent, the latest of equals.
// With `more` behind the text, which is no part of what is searched, the keys end where it ends.
Token brute_force_first(const Tokens & text, const std::vector<int> & lengths, const Tokens & more = {}) {
    Tokens whole = text;
    whole.insert(whole.end(), more.begin(), more.end());
    for (const int n : lengths) {
        if (whole.size() < std::size_t(n)) {
            continue;
        }
        std::map<Token, std::pair<int, std::size_t>> followers;  // token -> count, last position
        for (std::size_t end = std::size_t(n); end < text.size(); ++end) {
            if (std::equal(text.begin() + end - n, text.begin() + end, whole.end() - n)) {
                auto & [count, last] = followers[text[end]];
                ++count;
                last = end;
            }
        }
        if (followers.empty()) {
            continue;
        }
        Token best = -1;
        std::pair<int, std::size_t> best_rank{0, 0};
        for (const auto & [token, rank] : followers) {
            if (rank > best_rank) {
                best = token;
                best_rank = rank;
            }
        }
        return best;
    }
    return -1;
}

}  // namespace

TEST(unseen_text_proposes_nothing) {
    NgramMap map;
    CHECK(map.propose().tokens.empty());
    map.extend({1, 2, 3, 4, 5, 6});
    CHECK(map.propose().tokens.empty());
    CHECK(map.size() == 6);
}

TEST(first_repeated_key_proposes_what_followed_it) {
    NgramMap map(sizes(3, 4, 3));
    map.extend({1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3});
    const Proposal proposal = map.propose();
    CHECK((proposal.tokens == Tokens{4, 5, 6, 7}));
    CHECK(proposal.match_length == 3);
    CHECK(proposal.probabilities.size() == 4);
}

TEST(what_would_be_proposed_after_more_tokens) {
    NgramMap map(sizes(3, 4, 2));
    map.extend({1, 2, 3, 4, 5, 6, 7, 8, 40, 41});
    const std::size_t n_corpus = map.n_corpus();
    CHECK(map.propose().tokens.empty());
    CHECK((map.propose_after({2, 3}, 9).tokens == Tokens{4, 5, 6, 7}));
    CHECK((map.propose_after({2, 3}, 2).tokens == Tokens{4, 5}));
    CHECK(map.propose_after({9, 9}, 9).tokens.empty());
    // The context is as before, nothing was learned.
    CHECK(map.size() == 10 && map.n_corpus() == n_corpus);
    CHECK(map.propose().tokens.empty());
    // A key that reaches over the seam; a loop through the new tokens goes on as a loop.
    map.extend({1, 2});
    CHECK((map.propose_after({3}, 2).tokens == Tokens{4, 5}));
    CHECK(map.propose_after({3}, 2).match_length == 3);
    NgramMap loop(sizes(3, 6, 2));
    loop.extend({7, 1, 2, 3});
    CHECK((loop.propose_after({1, 2}, 6).tokens == Tokens{3, 1, 2, 3, 1, 2}));
}

TEST(after_more_tokens_the_first_is_brute_force_search) {
    std::uint64_t state = 1;
    const auto draw = [&state](int n) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        return static_cast<Token>((state >> 33) % static_cast<std::uint64_t>(n));
    };
    int found = 0;
    for (int round = 0; round < 300; ++round) {
        Tokens text;
        for (int i = 0; i < 60; ++i) {
            text.push_back(draw(4));
        }
        Tokens more;
        for (int i = 0; i <= round % 3; ++i) {
            more.push_back(draw(4));
        }
        NgramMap map(sizes(4, 6, 2));
        map.extend(text);
        const Proposal proposal = map.propose_after(more, 3);
        const Token expected = brute_force_first(text, {4, 2}, more);
        CHECK((proposal.tokens.empty() ? -1 : proposal.tokens[0]) == expected);
        found += expected >= 0;
    }
    CHECK(found > 200);
}

TEST(key_at_the_start_of_the_text_counts) {
    NgramMap map(sizes(2, 8, 2));
    map.extend({9, 8, 7, 9, 8});
    CHECK((map.propose(1).tokens == Tokens{7}));
}

TEST(longer_key_wins_over_shorter) {
    NgramMap map(sizes(4, 1, 2));
    // After (3, 4) came 50 twice; after (1, 2, 3, 4) came 60 once.
    map.extend({3, 4, 50, 0, 3, 4, 50, 0, 1, 2, 3, 4, 60, 9, 1, 2, 3, 4});
    CHECK((map.propose().tokens == Tokens{60}));
}

TEST(most_frequent_value_wins_then_the_latest) {
    NgramMap map(sizes(2, 1, 2));
    map.extend({1, 2, 10, 1, 2, 20, 1, 2, 10, 1, 2, 30, 1, 2});
    CHECK((map.propose().tokens == Tokens{10}));
    map.extend({30, 1, 2});
    CHECK((map.propose().tokens == Tokens{30}));
}

TEST(proposal_comes_from_the_chosen_value_not_the_last_match) {
    NgramMap map(sizes(2, 3, 2));
    map.extend({1, 2, 10, 11, 12, 1, 2, 10, 11, 12, 1, 2, 20, 21, 22, 1, 2});
    CHECK((map.propose().tokens == Tokens{10, 11, 12}));
}

TEST(fifth_value_replaces_the_weakest) {
    NgramMap map(sizes(1, 1, 1));
    for (const Token value : {10, 10, 20, 30, 40, 50}) {
        map.extend({1, value});
    }
    map.extend({1});
    CHECK((map.propose().tokens == Tokens{10}));
    // 20 was the oldest of the single ones and is gone; each of the others can still become the best.
    map.extend({40, 1, 40, 1, 40, 1});
    CHECK((map.propose().tokens == Tokens{40}));
}

TEST(loop_is_continued_past_the_end_of_the_text) {
    NgramMap map(sizes(3, 10, 3));
    map.extend({1, 2, 1, 2, 1, 2});
    CHECK((map.propose().tokens == Tokens{1, 2, 1, 2, 1, 2, 1, 2, 1, 2}));
}

TEST(truncation_rewinds_the_context_and_keeps_the_knowledge) {
    NgramMap map(sizes(3, 4, 3));
    map.extend({1, 2, 3, 4, 5, 6});
    map.truncate(3);
    CHECK(map.size() == 3);
    CHECK((map.propose().tokens == Tokens{4, 5, 6}));
    map.extend({40, 50});
    map.truncate(0);
    CHECK(map.size() == 0);
    CHECK(map.propose().tokens.empty());
    map.extend({7, 1, 2, 3});
    // 4 and 40 were each seen once after (1, 2, 3); 40 is the later one.
    CHECK((map.propose().tokens == Tokens{40, 50}));
}

TEST(value_ends_where_its_text_was_cut) {
    NgramMap map(sizes(2, 8, 2));
    map.extend({1, 2, 3, 4});
    map.truncate(0);
    map.extend({9, 9, 9, 1, 2});
    CHECK((map.propose().tokens == Tokens{3, 4}));
}

TEST(assign_keeps_the_common_prefix) {
    NgramMap map(sizes(2, 8, 2));
    map.assign({1, 2, 3, 4, 5});
    const std::size_t learned = map.n_corpus();
    map.assign({1, 2, 3, 4, 5});
    CHECK(map.n_corpus() == learned);
    map.assign({1, 2, 3, 9});
    CHECK(map.size() == 4);
    map.assign({});
    CHECK(map.size() == 0);
}

TEST(rejection_lowers_and_acceptance_raises_the_estimate) {
    NgramMap map(sizes(3, 4, 3));
    map.extend({1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3});
    const float before = map.propose().probabilities[0];
    map.accept(0);
    const float rejected = map.propose().probabilities[0];
    CHECK(rejected < before);
    for (int i = 0; i < 6; ++i) {
        map.propose();
        map.accept(4);
    }
    const float accepted = map.propose().probabilities[0];
    CHECK(accepted > rejected);
    CHECK(accepted > before);
}

TEST(rejected_value_gives_way_to_another) {
    NgramMap map(sizes(2, 2, 2));
    map.extend({1, 2, 10, 11, 1, 2, 10, 11, 1, 2, 20, 21, 1, 2});
    CHECK(map.propose().tokens[0] == 10);
    for (int i = 0; i < 4; ++i) {
        if (map.propose().tokens[0] == 10) {
            map.accept(0);
        }
    }
    CHECK(map.propose().tokens[0] == 20);
}

TEST(two_followers_share_the_first_probability) {
    NgramMap one(sizes(2, 1, 2));
    one.extend({1, 2, 10, 9, 1, 2, 10, 8, 1, 2});
    NgramMap two(sizes(2, 1, 2));
    two.extend({1, 2, 20, 9, 1, 2, 10, 8, 1, 2});
    CHECK(std::fabs(two.propose().probabilities[0] - 0.5f * one.propose().probabilities[0]) < 0.05f);
}

TEST(accept_checks_its_numbers) {
    NgramMap map(sizes(3, 4, 3));
    map.accept(0);  // nothing was proposed: nothing to judge
    map.extend({1, 2, 3, 4, 5, 1, 2, 3});
    map.propose(2);
    CHECK_THROWS(std::invalid_argument, (map.accept(3), 0));
    map.propose(2);
    CHECK_THROWS(std::invalid_argument, (map.accept(-1), 0));
    map.propose(2);
    map.accept(1, 1);
}

TEST(bad_sizes_are_refused) {
    CHECK_THROWS(std::invalid_argument, NgramMap(sizes(0, 48, 0)));
    CHECK_THROWS(std::invalid_argument, NgramMap(sizes(3, 48, 4)));
    CHECK_THROWS(std::invalid_argument, NgramMap(sizes(3, 0, 3)));
    NgramMap map;
    CHECK_THROWS(std::invalid_argument, (map.extend({1, -2}), 0));
    CHECK(map.size() == 0);
}

TEST(first_token_agrees_with_a_search_of_the_whole_text) {
    std::mt19937 random(7);
    const std::vector<int> lengths = {6, 4, 2};  // the ladder of size_n 6, size_n_min 2
    for (int round = 0; round < 20; ++round) {
        NgramMap map(sizes(6, 5, 2));
        Tokens text;
        for (int i = 0; i < 300; ++i) {
            const Token token = static_cast<Token>(random() % 3);
            text.push_back(token);
            map.extend({token});
            const Proposal proposal = map.propose();
            const Token expected = brute_force_first(text, lengths);
            const Token found = proposal.tokens.empty() ? -1 : proposal.tokens[0];
            if (found != expected) {
                std::printf("  round %d, length %zu: %d, expected %d\n", round, text.size(), found, expected);
                ++check::failures;
                return;
            }
        }
    }
}

TEST(probabilities_are_probabilities) {
    std::mt19937 random(3);
    NgramMap map;
    for (int i = 0; i < 3000; ++i) {
        map.extend({static_cast<Token>(random() % 4)});
        const Proposal proposal = map.propose();
        for (const float p : proposal.probabilities) {
            CHECK(p > 0.0f && p < 1.0f);
        }
        if (!proposal.tokens.empty()) {
            map.accept(static_cast<int>(random() % (proposal.tokens.size() + 1)));
        }
    }
}

TEST(bounded_corpus_forgets_the_older_half) {
    NgramMapOptions options = sizes(4, 8, 3);
    options.max_tokens = 4096;
    NgramMap map(options);
    for (Token token = 0; token < 20000; ++token) {
        map.extend({token});
    }
    CHECK(map.n_corpus() <= 4096 + 16);
    CHECK(map.size() == 20000);
    map.extend({19000, 19001, 19002});
    CHECK(map.propose(2).tokens == (Tokens{19003, 19004}));
    map.extend({1, 2, 3});
    CHECK(map.propose().tokens.empty());  // long forgotten
}

TEST(saved_table_proposes_as_before) {
    NgramMap map(sizes(5, 12, 2));
    std::mt19937 random(11);
    for (int i = 0; i < 500; ++i) {
        map.extend({static_cast<Token>(random() % 6)});
        const Proposal proposal = map.propose();
        map.accept(static_cast<int>(proposal.tokens.size()) / 2);
        if (i % 100 == 99) {
            map.truncate(map.size() / 2);
        }
    }
    map.bind_tokenizer(42);
    const std::string path = temporary("table");
    map.save(path);
    NgramMap loaded = NgramMap::load(path);
    CHECK(loaded.size() == map.size());
    CHECK(loaded.n_keys() == map.n_keys());
    CHECK(loaded.tokenizer() == 42);
    for (int i = 0; i < 200; ++i) {
        const Proposal a = map.propose();
        const Proposal b = loaded.propose();
        CHECK(a.tokens == b.tokens);
        CHECK(a.probabilities == b.probabilities);
        const Token next = static_cast<Token>(random() % 6);
        map.extend({next});
        loaded.extend({next});
    }
    std::filesystem::remove(path);
}

TEST(damaged_table_is_refused_wherever_it_is_damaged) {
    NgramMap map(sizes(3, 4, 2));
    map.extend({1, 2, 3, 4, 5, 1, 2, 3});
    map.truncate(4);
    map.extend({7, 8});
    const std::string path = temporary("damaged");
    map.save(path);
    const std::string good = bytes_of(path);
    for (std::size_t i = 0; i < good.size(); ++i) {
        std::string bad = good;
        bad[i] = static_cast<char>(bad[i] ^ 0x41);
        std::ofstream(path, std::ios::binary) << bad;
        CHECK_THROWS(NgramMapError, NgramMap::load(path));
        std::ofstream(path, std::ios::binary) << good.substr(0, i);
        CHECK_THROWS(NgramMapError, NgramMap::load(path));
    }
    std::filesystem::remove(path);
    CHECK_THROWS(NgramMapError, NgramMap::load(path));
    CHECK_THROWS(NgramMapError, (map.save("/nonexistent-folder/table"), 0));
}

TEST(table_of_another_tokenizer_is_refused) {
    NgramMap map;
    map.bind_tokenizer(1);
    map.bind_tokenizer(1);
    CHECK_THROWS(NgramMapError, (map.bind_tokenizer(2), 0));
}

int main() { return check::run(); }
