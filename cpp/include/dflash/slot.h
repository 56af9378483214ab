// One text that somebody else decodes: a slot of a server, whose own loop runs the target, samples and accepts.
//
// The slot drafts for it, and learns what became of a draft from the text itself, so that nothing the server may do
// in between (a cancelled request, a replay, another prompt with a common beginning) can put it out of step:
//
//     slot.draft(text, ...)          before the target's pass: tokens to verify after the text's last one
//     slot.launch()                  just before it, all slots having drafted: the drafter begins to work beside it
//     slot.land()                    just after it
//     slot.rows(position, features)  the features of this slot's rows, accepted or not
//
// `text` is all that is committed; its last token, the anchor, has not been seen by the target. Features of a prompt go
// to the drafter at once, those of a verification when the next draft shows which rows stand. Where the server cut
// tokens out of the middle of the text (a context shift), the drafter's cache follows.
//
// Shares the table and the drafter with nobody else, and the library with other slots: a table that each adds its
// texts to when they are done with. One thread at a time.

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
    // feature_width: floats of a row's features; 0 where the drafter needs none. ngram, library: may be null. Throws as
    // Speculator does.
    Slot(std::shared_ptr<NgramMap> ngram, std::shared_ptr<ModelDrafter> drafter, const SpeculatorOptions & options,
         int feature_width, std::shared_ptr<NgramMap> library = nullptr);
    ~Slot();

    // A request begins; what stats() counts begins anew.
    void begin();

    // A draft of at most max_tokens behind the text. with_q: fill in Draft::q, for rejection sampling.
    const Draft & draft(const Tokens & text, int max_tokens, const SamplerOptions & sampling, bool with_q);

    // Begins drafting beside the target's pass where that is wanted, and says so.
    bool launch();
    // The pass is over since now_us: waits for what was launched.
    void land(std::int64_t now_us);

    // Whether rows [position, position + n_rows) are the last draft's verification.
    bool verifies(int position, int n_rows) const;

    // The target's pass over rows at positions [position, position + n_rows) of this slot is over. features:
    // [n_rows][feature_width], or null where it gave none (an image, say): the drafter then does without them.
    // company: the other slots in that pass.
    void rows(int position, int n_rows, const float * features, const CostModel::Company & company = {});

    // How many of the last draft's tokens stand. The text tells it as well, but for a request's last draft.
    void accepted(int n_tokens) { n_accepted_ = n_tokens; }

    // Nothing of the text stands any more.
    void clear();

    Speculator & speculator() { return speculator_; }
    // Of the request: all of its verifications, the last one as far as `accepted` told.
    Stats stats() const;

private:
    void learn(const Tokens & text);
    void book(Stats & stats, int n_accepted, int n_new) const;
    void absorb(int n_tokens);
    void follow(const Tokens & text);
    void shelve();

    Speculator speculator_;
    std::shared_ptr<NgramMap> library_;
    int feature_width_;
    Tokens text_;  // that the last draft was made for
    Draft draft_;  // the last one
    SamplerOptions sampling_;
    bool with_q_ = false;
    bool goes_on_ = false;  // something can follow the draft
    Stats stats_;
    bool drafted_ = false;  // draft_ waits for its verdict
    bool beside_ = false;   // the drafter works, or worked, beside that verification
    bool read_ = false;     // rows came since that were no verification
    int n_accepted_ = 0;    // of it, as far as somebody told
    std::int64_t launched_us_ = 0;
    std::int64_t landed_us_ = 0;  // the pass's end; 0: it goes on
    Speculator::Landing landing_;
    double verify_us_ = 0.0;      // of that verification; 0: not known
    std::int64_t beside_us_ = 0;  // of that, a drafter's pass ran
    CostModel::Company company_;
    // Features of rows that may not be committed yet.
    int stash_position_ = 0;  // of the first one
    std::vector<float> stash_;
};

}  // namespace dflash
