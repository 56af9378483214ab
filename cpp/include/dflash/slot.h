// One text that somebody else decodes: a slot of a server, whose own loop runs the target, samples and accepts.
//
// The slot drafts for it, and learns what became of a draft from the text itself, so that nothing the server may do
// in between (a cancelled request, a replay, another prompt with a common beginning) can put it out of step:
//
//     slot.draft(text, ...)          before the target's pass: tokens to verify after the text's last one, and the
//                                    drafter begins to work on the next draft
//     slot.rows(position, features)  after it: the features of this slot's rows, accepted or not
//
// `text` is all that is committed; its last token, the anchor, has not been seen by the target. Shares the table and
// the drafter with nobody else. One thread at a time.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "dflash/draft.h"
#include "dflash/speculator.h"
#include "dflash/token.h"

namespace dflash {

class Slot {
public:
    // feature_width: floats of a row's features; 0 where the drafter needs none. Throws as Speculator does.
    Slot(std::shared_ptr<NgramMap> ngram, std::shared_ptr<ModelDrafter> drafter, const SpeculatorOptions & options,
         int feature_width);

    // A draft of at most max_tokens behind the text. with_q: fill in Draft::q, for rejection sampling.
    const Draft & draft(const Tokens & text, int max_tokens, const SamplerOptions & sampling, bool with_q);

    // The target's pass over rows at positions [position, position + n_rows) of this slot is over. features:
    // [n_rows][feature_width], or null where it gave none (an image, say): the drafter then does without them.
    // company: the other slots in that pass.
    void rows(int position, int n_rows, const float * features, const CostModel::Company & company = {});

    // Nothing of the text stands any more.
    void clear();

    const Speculator & speculator() const { return speculator_; }
    const Stats & stats() const { return stats_; }

private:
    void learn(const Tokens & text);
    void absorb(int n_tokens);

    Speculator speculator_;
    int feature_width_;
    Tokens text_;  // that the last draft was made for
    Draft draft_;  // the last one
    Stats stats_;
    bool drafted_ = false;  // draft_ waits for its verdict
    bool beside_ = false;   // the drafter works, or worked, beside that verification
    std::int64_t launched_us_ = 0;
    double verify_us_ = 0.0;  // of that verification; 0: not known
    CostModel::Company company_;
    // Features of rows that may not be committed yet.
    int stash_position_ = 0;  // of the first one
    std::vector<float> stash_;
};

}  // namespace dflash
