// The verdict of a verification, as a rule over plain integers: which draft tokens stand, and what follows.
//
// Greedy and coupled sampling share one rule: row i of the verification has its own token, fixed before
// anyone looked at the draft; a draft token is accepted where it is that token. So the committed text is the
// target's, whatever was drafted. Pure functions; safe from any thread.

#pragma once

#include <functional>

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

}  // namespace dflash
