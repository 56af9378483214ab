// The user's sampler chain, from a row of logits to the target's own token.
//
// Temperature 0: the argmax of the logits after bias, penalties and grammar. Otherwise the chain (logit bias,
// penalties, top-k, typical, top-p, min-p, temperature) gives a distribution, and the token is its coupled
// draw: argmax of log p + Gumbel noise of (seed, position, token). Ties go to the lower id.
//
// A grammar is asked about the drawn token first; only where it refuses are the logits of all tokens that it
// refuses set to -inf and the chain and the draw repeated with the same noise. For a chain without truncation
// that is the draw from the constrained distribution itself, at the price of one look-up.
//
// `sample` changes nothing; `accept` moves penalties and grammar on. One thread at a time.

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dflash/lattice.h"
#include "dflash/token.h"
#include "dflash/vocab.h"

struct llama_sampler;

namespace dflash {

struct SamplerOptions {
    float temperature = 0.0f;        // 0: greedy
    int top_k = 0;                   // 0: off
    float top_p = 1.0f;              // 1: off
    float min_p = 0.0f;              // 0: off
    float typical_p = 1.0f;          // 1: off
    float repeat_penalty = 1.0f;     // 1: off
    float frequency_penalty = 0.0f;  // 0: off
    float presence_penalty = 0.0f;   // 0: off
    int penalty_last_n = 64;         // tokens that penalties look back on
    std::uint64_t seed = 0;
    std::vector<std::pair<Token, float>> logit_bias;
    std::string grammar;  // GBNF, root rule "root"; empty: none
};

class Sampler {
public:
    // Throws std::invalid_argument naming the option that is out of range, or the grammar's fault.
    Sampler(Vocab vocab, const SamplerOptions & options);
    ~Sampler();

    // The target's token at `position` (its index in the sequence), given logits [vocab size].
    // Throws ModelError where no logit is finite.
    Token sample(const float * logits, std::int64_t position);
    void accept(Token token);
    // The prompt counts for penalties, not for the grammar.
    void accept_prompt(const Tokens & prompt);

    // The chain's whole distribution over the next token, in no order; grammar included.
    // Throws ModelError where no logit is finite.
    std::vector<TokenProbability> distribution(const float * logits);

    bool greedy() const { return options_.temperature == 0.0f; }
    const SamplerOptions & options() const { return options_; }

private:
    struct Candidates;
    using SamplerPtr = std::unique_ptr<llama_sampler, void (*)(llama_sampler *)>;

    Token draw(const float * logits, std::int64_t position, bool constrained);
    void fill(const float * logits, bool constrained);
    void penalise();
    bool allowed(Token token);

    Vocab vocab_;
    SamplerOptions options_;
    SamplerPtr bias_;        // null: none
    SamplerPtr penalties_;   // null: none
    SamplerPtr truncation_;  // top-k, typical, top-p, min-p; null: none
    SamplerPtr grammar_;     // null: none
    Tokens recent_;          // the tokens that penalties look back on, oldest first
    std::unique_ptr<Candidates> candidates_;
};

}  // namespace dflash
