// Decides what to offer to the target next: which source's tokens, and how many of them.
//
// The k4v table proposes; the cost model, fed with every verification's time, says at which width the
// proposal promises the most tokens per second, or that plain decoding does. The speculator never decides
// what the text is. Shares the table (which may be null), locking it for each use; one thread at a time.

#pragma once

#include <memory>

#include "dflash/cost_model.h"
#include "dflash/ngram_map.h"
#include "dflash/stats.h"
#include "dflash/token.h"

namespace dflash {

struct Draft {
    Tokens tokens;  // may be empty: plain decoding
    Source source = Source::none;
};

class Speculator {
public:
    explicit Speculator(std::shared_ptr<NgramMap> ngram) : ngram_(std::move(ngram)) {}

    // The committed text is now `tokens`. The table follows, whatever happened to it or to the text since.
    void begin(const Tokens & tokens);

    // A draft of at most max_tokens to follow the committed text.
    Draft propose(const Tokens & committed, int max_tokens);

    // The verdict: the draft's accepted length, the tokens now committed, the verification's time.
    void learn(const Draft & draft, int n_accepted, const Tokens & committed, double verify_us);

    const CostModel & cost_model() const { return cost_; }
    const std::shared_ptr<NgramMap> & ngram() const { return ngram_; }

private:
    void follow(const Tokens & committed);

    std::shared_ptr<NgramMap> ngram_;
    std::uint64_t seen_revision_ = 0;  // of the table, after this speculator's last use of it
    CostModel cost_;
};

}  // namespace dflash
