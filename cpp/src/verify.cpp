#include "dflash/verify.h"

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

}  // namespace dflash
