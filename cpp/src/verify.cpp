#include "dflash/verify.h"

#include <algorithm>
#include <cmath>

#include "dflash/noise.h"

namespace dflash {

Verdict verify(const Tokens & draft, const std::function<Token(int)> & target_token,
               const std::function<bool(Token)> & is_end) {
    Verdict verdict;
    for (int i = 0;; ++i) {
        const Token token = target_token(i);
        verdict.tokens.push_back(token);
        const bool in_draft = i < static_cast<int>(draft.size());
        if (!in_draft || token != draft[static_cast<std::size_t>(i)]) {
            return verdict;
        }
        ++verdict.n_accepted;
        if (is_end(token)) {
            return verdict;
        }
    }
}

namespace {

float probability_of(const std::vector<TokenProbability> & distribution, Token token) {
    const auto found = std::find_if(distribution.begin(), distribution.end(),
                                    [token](const TokenProbability & entry) { return entry.token == token; });
    return found == distribution.end() ? 0.0f : found->probability;
}

// [largest token id + 1] the probabilities, by token id: a vocabulary is looked up in whole.
std::vector<float> by_token(const std::vector<TokenProbability> & distribution) {
    std::vector<float> dense;
    for (const TokenProbability & entry : distribution) {
        const auto id = static_cast<std::size_t>(entry.token);
        if (id >= dense.size()) {
            dense.resize(id + 1, 0.0f);
        }
        dense[id] = entry.probability;
    }
    return dense;
}

// A draw by weights that need not sum to 1; -1 where none is positive.
Token draw(const std::vector<TokenProbability> & weights, const GumbelNoise & noise) {
    Token best = -1;
    double best_score = -INFINITY;
    for (const TokenProbability & entry : weights) {
        const double score =
            entry.probability > 0.0f ? std::log(double(entry.probability)) + noise(entry.token) : -INFINITY;
        if (score > best_score) {
            best = entry.token;
            best_score = score;
        }
    }
    return best;
}

// Streams of noise that must not share a counter with each other or with a coupled draw at the position.
constexpr std::uint64_t accept_stream = 0x5bd1e9955bd1e995ull;
constexpr std::uint64_t residual_stream = 0xc2b2ae3d27d4eb4full;

}  // namespace

Verdict verify_by_rejection(const Tokens & draft, const std::vector<std::vector<TokenProbability>> & q,
                            const std::function<std::vector<TokenProbability>(int)> & target_distribution,
                            const std::function<bool(Token)> & is_end, std::uint64_t seed, std::int64_t position) {
    Verdict verdict;
    for (int i = 0;; ++i) {
        std::vector<TokenProbability> p = target_distribution(i);
        const GumbelNoise residual_noise(seed ^ residual_stream, position + i);
        if (i == static_cast<int>(draft.size())) {
            verdict.tokens.push_back(draw(p, residual_noise));
            return verdict;
        }
        const auto at = static_cast<std::size_t>(i);
        const Token token = draft[at];
        const float q_token = q.empty() ? 1.0f : probability_of(q[at], token);
        const double u = GumbelNoise(seed ^ accept_stream, position + i).uniform(0);
        if (u * q_token < probability_of(p, token)) {
            verdict.tokens.push_back(token);
            ++verdict.n_accepted;
            if (is_end(token)) {
                return verdict;
            }
            continue;
        }
        std::vector<TokenProbability> residual = p;
        const std::vector<float> drafted = q.empty() ? by_token({{token, 1.0f}}) : by_token(q[at]);
        for (TokenProbability & entry : residual) {
            const auto id = static_cast<std::size_t>(entry.token);
            entry.probability = std::max(0.0f, entry.probability - (id < drafted.size() ? drafted[id] : 0.0f));
        }
        const Token drawn = draw(residual, residual_noise);
        // p <= q everywhere means p = q up to rounding: then p itself is the right distribution.
        verdict.tokens.push_back(drawn >= 0 ? drawn : draw(p, residual_noise));
        return verdict;
    }
}

}  // namespace dflash
