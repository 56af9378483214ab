// How fast is the k4v table, alone and beside llama.cpp's own ngram-map? Prints; asserts nothing.
//
// Usage: bench_ngram_map [n_tokens] [n_tokens_against_llama]
// The stream is text-like: words of a Zipf vocabulary, and now and then a passage that was there before.
// Both tables see the same stream; each appends a token, proposes, and hears that half was accepted.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>

#include "dflash/ngram_map.h"
#include "ngram-map.h"

using namespace dflash;

namespace {

Tokens text_like(std::size_t n_tokens) {
    std::mt19937 random(1);
    std::uniform_real_distribution<double> uniform(0.0, 1.0);
    Tokens text;
    while (text.size() < n_tokens) {
        if (text.size() > 1000 && uniform(random) < 0.02) {
            const std::size_t from = random() % (text.size() - 200);
            const std::size_t length = 20 + random() % 180;
            for (std::size_t i = 0; i < length; ++i) {
                text.push_back(text[from + i]);
            }
        } else {
            // Zipf by inversion: rank = V^u.
            text.push_back(static_cast<Token>(std::pow(49152.0, uniform(random))));
        }
    }
    text.resize(n_tokens);
    return text;
}

template <typename Step>
double microseconds_per_token(const Tokens & text, Step step) {
    const auto start = std::chrono::steady_clock::now();
    for (const Token token : text) {
        step(token);
    }
    const std::chrono::duration<double, std::micro> spent = std::chrono::steady_clock::now() - start;
    return spent.count() / static_cast<double>(text.size());
}

}  // namespace

int main(int argc, char ** argv) {
    const std::size_t n = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1000000;
    const std::size_t n_both = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 100000;

    NgramMap map;
    std::size_t proposed = 0;
    const double ours = microseconds_per_token(text_like(n), [&](Token token) {
        map.extend(&token, 1);
        const Proposal proposal = map.propose();
        proposed += proposal.tokens.size();
        map.accept(static_cast<int>(proposal.tokens.size() / 2));
    });
    std::printf(
        "k4v table, %zu tokens: %.3f us a token (append, propose, accept), %zu keys, %.1f MiB, "
        "%.1f tokens proposed each\n",
        n, ours, map.n_keys(), map.memory_bytes() / 1048576.0, double(proposed) / double(n));

    const Tokens shared = text_like(n_both);
    NgramMap fresh;
    const double ours_shared = microseconds_per_token(shared, [&](Token token) {
        fresh.extend(&token, 1);
        const Proposal proposal = fresh.propose();
        fresh.accept(static_cast<int>(proposal.tokens.size() / 2));
    });
    // llama.cpp's server sizes: keys of 12, values of 48, at least one hit.
    common_ngram_map theirs(12, 48, false, 1);
    llama_tokens history;
    common_ngram_map_begin(theirs, history);
    const double llama = microseconds_per_token(shared, [&](Token token) {
        llama_tokens draft;
        common_ngram_map_draft(theirs, history, token, draft);
        if (!draft.empty()) {
            common_ngram_map_accept(theirs, static_cast<uint16_t>(draft.size() / 2));
        }
        history.push_back(token);
    });
    std::printf("the same %zu tokens: k4v %.3f us a token, llama.cpp's common_ngram_map %.3f us a token: %.1fx\n",
                n_both, ours_shared, llama, llama / ours_shared);
    return 0;
}
