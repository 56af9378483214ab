// The verdict of a verification, as a rule over plain integers: which draft tokens stand, and what follows.
//
// Greedy and coupled sampling share one rule: row i of the verification has its own token, fixed before
// anyone looked at the draft; a draft token is accepted where it is that token. So the committed text is the
// target's, whatever was drafted. Pure functions; safe from any thread.

#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "dflash/lattice.h"
#include "dflash/token.h"

namespace dflash {

struct Verdict {
    Tokens tokens;       // what is committed: the accepted draft tokens, then the bonus token
    int n_accepted = 0;  // leading draft tokens that were right
};

// target_token(i): the target's own token after the anchor and i accepted draft tokens; called for i = 0, 1, ...
// until one differs from the draft, the draft is used up, or `is_end` holds. Then that token is the last one.
Verdict verify(const Tokens & draft, const std::function<Token(int)> & target_token,
               const std::function<bool(Token)> & is_end);

// Rejection sampling (Leviathan, Kalman, Matias 2023; Chen et al. 2023): a draft token x drawn from q is accepted
// with probability min(1, p(x) / q(x)); the first that is refused is replaced by a draw from the normalised
// (p - q)+. The committed tokens have the distribution p whatever q is; which tokens they are depends on the draft.
//
// q: [draft.size()], or empty where the draft's tokens were proposed with certainty. target_distribution(i): p
// after the anchor and i accepted draft tokens. `position`: index in the sequence of the first draft token; with
// `seed` it keys the noise of every draw.
Verdict verify_by_rejection(const Tokens & draft, const std::vector<std::vector<TokenProbability>> & q,
                            const std::function<std::vector<TokenProbability>(int)> & target_distribution,
                            const std::function<bool(Token)> & is_end, std::uint64_t seed, std::int64_t position);

}  // namespace dflash
