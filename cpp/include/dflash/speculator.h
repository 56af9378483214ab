// Decides what to offer to the target next: which source's tokens, and how many of them.
//
// The k4v table proposes, the drafter could; the cost model, fed with every verification's time, says which of
// them, at which width, promises the most tokens per second, or that plain decoding does. A drafter that does not
// pay is left alone and tried again now and then, ever more seldom. At a fixed width the drafter is always asked,
// unless the table expects more. The speculator never decides what the text is.
//
// Shares the table (which may be null), locking it for each use, and the drafter (which may be null). One thread
// at a time.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "dflash/acceptance.h"
#include "dflash/cost_model.h"
#include "dflash/model_drafter.h"
#include "dflash/ngram_map.h"
#include "dflash/stats.h"
#include "dflash/token.h"

namespace dflash {

class Speculator {
public:
    static constexpr int automatic = 0;

    // width: tokens that the drafter is asked for, >= 1, or `automatic`. Throws std::invalid_argument.
    Speculator(std::shared_ptr<NgramMap> ngram, std::shared_ptr<ModelDrafter> drafter, int width);

    // Fills the cost model, once, from a function that gives the microseconds of a verification of n rows, asked
    // for at most max_rows. Stops after about a second. Only the automatic width needs it.
    void calibrate(const std::function<double(int)> & measure_us, int max_rows);
    bool needs_calibration() const { return drafter_ && width_ == automatic && !calibrated_; }

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
    static constexpr int first_probe = 64;
    static constexpr int last_probe = 1024;
    static constexpr int widest = 16;  // that automatic widths go to

    void follow(const Tokens & committed);
    Draft propose_from_table(const Tokens & committed, int max_tokens, double & expected, double & gain);
    int drafter_width(int max_tokens, double expected_of_table, double gain_of_table);

    std::shared_ptr<NgramMap> ngram_;
    std::shared_ptr<ModelDrafter> drafter_;
    int width_;
    std::uint64_t seen_revision_ = 0;  // of the table, after this speculator's last use of it
    double drafter_accepted_ = 1.0;    // tokens of a drafter's draft accepted lately, a moving mean
    Acceptance drafter_acceptance_;
    CostModel draft_cost_;  // of drafts, by their tokens instead of rows
    bool calibrated_ = false;
    int undrafted_ = 0;  // steps since the drafter was last asked
    int probe_after_ = first_probe;
    CostModel cost_;
};

}  // namespace dflash
