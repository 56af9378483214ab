// Decides what to offer to the target next: which source's tokens, and how many of them.
//
// The k4v table proposes, and the cost model, fed with every verification's time, says at which width the
// proposal promises the most tokens per second. A model drafter drafts at a fixed width. The table's proposal is
// taken where more of it is expected to be accepted than the drafter's drafts have been lately; then the drafter
// is not run. The speculator never decides what the text is.
//
// Shares the table (which may be null), locking it for each use, and the drafter (which may be null). One thread
// at a time.

#pragma once

#include <cstdint>
#include <memory>

#include "dflash/cost_model.h"
#include "dflash/model_drafter.h"
#include "dflash/ngram_map.h"
#include "dflash/stats.h"
#include "dflash/token.h"

namespace dflash {

class Speculator {
public:
    // width: tokens that the drafter is asked for, >= 1. Throws std::invalid_argument.
    Speculator(std::shared_ptr<NgramMap> ngram, std::shared_ptr<ModelDrafter> drafter, int width);

    // The committed text is now `tokens`. The table follows, whatever happened to it or to the text since.
    void begin(const Tokens & tokens);

    // A draft of at most max_tokens to follow the committed text; with_q as for ModelDrafter::draft.
    Draft propose(const Tokens & committed, int max_tokens, const SamplerOptions & sampling, bool with_q);

    // The verdict: the draft's accepted length, the tokens now committed, the verification's time.
    void learn(const Draft & draft, int n_accepted, const Tokens & committed, double verify_us);

    const CostModel & cost_model() const { return cost_; }
    const std::shared_ptr<NgramMap> & ngram() const { return ngram_; }
    ModelDrafter * drafter() const { return drafter_.get(); }
    int width() const { return width_; }

private:
    void follow(const Tokens & committed);
    Draft propose_from_table(const Tokens & committed, int max_tokens, double & expected);

    std::shared_ptr<NgramMap> ngram_;
    std::shared_ptr<ModelDrafter> drafter_;
    int width_;
    std::uint64_t seen_revision_ = 0;  // of the table, after this speculator's last use of it
    double drafter_accepted_ = 1.0;    // tokens of a drafter's draft accepted lately, a moving mean
    CostModel cost_;
};

}  // namespace dflash
