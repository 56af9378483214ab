// What a source offers to the target, and what the speculator expected of it. Plain data.

#pragma once

#include <vector>

#include "dflash/lattice.h"
#include "dflash/stats.h"
#include "dflash/token.h"

namespace dflash {

struct Draft {
    Tokens tokens;  // may be empty: plain decoding
    Source source = Source::none;
    // [tokens.size()] the distribution that each token was drawn from; empty for a source that proposes one
    // token with certainty (q is then 1 for it).
    std::vector<std::vector<TokenProbability>> q;

    int position = 0;   // index in the text of tokens[0]
    int n_spliced = 0;  // of the tokens, the last ones: the table's, behind the drafter's
    // [tokens.size()] each token's expected chance to be accepted once those before it are.
    std::vector<float> acceptance;
    double expected_us = 0.0;  // from here to the verdict

    // The drafter's walk that `tokens` is the beginning of, or that another source was preferred to: what comes
    // true of it teaches, offered or not. confidence: [walked.size()], the likeliest token's probability in q.
    Tokens walked;
    std::vector<float> confidence;
    Source walked_by = Source::none;

    // Tokens that the verification is expected to commit, the bonus included.
    double expected_tokens() const {
        double expected = 1.0;
        double survives = 1.0;
        for (const float p : acceptance) {
            survives *= p;
            expected += survives;
        }
        return expected;
    }
};

}  // namespace dflash
