// Decides what to offer to the target next: which source's tokens, how many of them, and whether the drafter works
// on the next draft while the target verifies this one.
//
// Sources: the k4v table; a fresh draft, for which the target waits; a block drafted ahead for the outcome that came
// true; the continuation of a block whose anchor lies further back. Behind a drafter's tokens the table's continuation
// of them is spliced on, as far as it pays. The cost model (verifications by rows, drafter
// passes) and the acceptance seen so far (by source, position and confidence) give every option's expected tokens
// per second; the best is taken, or none where plain decoding is faster. What does not pay is left alone and tried
// again now and then, ever more seldom. The speculator never decides what the text is.
//
// A fixed policy (a fixed width, ahead on or off) looks at no clock where drafts are verified by rejection, so that
// the same seed drafts the same.
//
// Shares the table (which may be null), locking it for each use, and the drafter (which may be null). A drafter that
// fails is given up with a warning: that costs speed, never the generation. One thread at a time; the thread that
// drafts ahead is this class's own.

#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "dflash/acceptance.h"
#include "dflash/cost_model.h"
#include "dflash/draft.h"
#include "dflash/drafted_blocks.h"
#include "dflash/model_drafter.h"
#include "dflash/ngram_map.h"
#include "dflash/outcomes.h"
#include "dflash/stats.h"
#include "dflash/token.h"
#include "dflash/worker.h"

namespace dflash {

enum class Ahead { off, on, automatic };

// "off", "on" or "auto". Throws std::invalid_argument.
Ahead ahead_of(const std::string & name);

struct SpeculatorOptions {
    static constexpr int automatic = 0;
    static constexpr int max_width = 63;

    int width = automatic;  // tokens that the drafter is asked for, or `automatic`
    Ahead ahead = Ahead::automatic;
    int n_outcomes = 4;  // drafted for in one ahead pass, at most
};

class Speculator {
public:
    // Throws std::invalid_argument: a width or n_outcomes out of range, or ahead on without a drafter that fills
    // blocks.
    Speculator(std::shared_ptr<NgramMap> ngram, std::shared_ptr<ModelDrafter> drafter,
               const SpeculatorOptions & options);

    // Drafts beside the target take turns with other speculators' under this mutex.
    void take_turns(std::shared_ptr<std::mutex> turn) { turn_ = std::move(turn); }

    // A second table, asked where the first knows nothing; somebody else fills it with whole texts.
    void consult(std::shared_ptr<NgramMap> library) { library_ = std::move(library); }

    // Fills the cost model, once, from a function that gives the microseconds of a verification of n rows, alone
    // or beside a drafter's pass; it is asked for at most max_rows. Stops after about a second.
    using Measure = std::function<double(int n_rows, bool beside)>;
    void calibrate(const Measure & measure_us, int max_rows, int n_context);
    bool needs_calibration() const;
    bool calibrated() const { return calibrated_; }  // measured, or loaded
    // The cost model from and to a file; see CostCurves. load: false where there is none for this key.
    void save_costs(const std::string & path, const std::string & key) const;
    bool load_costs(const std::string & path, const std::string & key);
    // Another one's, of the same target, drafter and options.
    void take_costs(const Speculator & other);

    // The committed text is now `tokens`. The table follows, whatever happened to it or to the text since.
    void begin(const Tokens & tokens);

    // A draft of at most max_tokens to follow the committed text. with_q: fill in Draft::q.
    Draft propose(const Tokens & committed, int max_tokens, const SamplerOptions & sampling, bool with_q);

    // The target is about to verify `draft`: begins drafting beside it where that is wanted, and says so.
    bool launch(const Tokens & committed, const Draft & draft, const SamplerOptions & sampling, bool with_q);
    // Waits for what was launched. Its time on the drafter's lane, and the rows of its passes; 0 rows: nothing was.
    struct Landing {
        std::int64_t start_us = 0;
        std::int64_t end_us = 0;
        int n_rows = 0;

        // Of it, between two times.
        std::int64_t within_us(std::int64_t from_us, std::int64_t to_us) const {
            return n_rows > 0 ? std::max<std::int64_t>(0, std::min(to_us, end_us) - std::max(from_us, start_us)) : 0;
        }
    };
    Landing land();

    // Other texts in the target's passes, until told otherwise.
    void keep(const CostModel::Company & company) {
        company_ = company;
        cost_->keep(company);
    }

    // The verdict: the draft's accepted length, the tokens now committed, the verification's time (0: not known).
    void learn(const Draft & draft, int n_accepted, const Tokens & committed, double verify_us, bool beside);

    // The drafter takes in the first n_rows of the target's last pass; what it knows of the text is cut to
    // n_tokens; how much it knows (a drafter that was given up, or none: everything). absorb_rows, skip_to,
    // cut_out: as ModelDrafter's.
    void absorb(int n_rows);
    void absorb_rows(const float * features, int n_rows);
    void skip_to(int n_tokens);
    void truncate(int n_tokens);
    void cut_out(int from, int n_tokens);
    int n_past() const;

    const CostModel & cost_model() const { return *cost_; }
    const AheadStats & ahead_stats() const { return ahead_stats_; }
    const std::shared_ptr<NgramMap> & ngram() const { return ngram_; }
    // What the costs depend on beside the target.
    std::string identity() const;
    bool has_drafter() const { return drafter_ != nullptr; }
    void rest() {
        if (drafter_) {
            drafter_->rest();
        }
    }
    int threads_beside() const { return blocks_drafter_ ? blocks_drafter_->threads_beside() : 0; }

private:
    static constexpr int first_probe = 64;
    static constexpr int last_probe = 1024;
    static constexpr int probed_width = 2;
    static constexpr int widest = 16;      // that automatic widths go to
    static constexpr int trial_steps = 8;  // of drafting ahead, before it is judged
    static constexpr double hysteresis = 1.02;
    static constexpr int base_pass = 1;
    static constexpr int outcomes_pass = 2;

    struct Option {
        Draft draft;
        double gain = 1.0;  // expected rate, in plain decodings
    };

    bool automatic() const { return options_.width == SpeculatorOptions::automatic; }
    void give_up(const std::string & why);
    void guard(const std::function<void(ModelDrafter &)> & use);
    void follow(const Tokens & committed);
    Option from_table(const Tokens & committed, int max_tokens, bool with_q);
    Option from_block(const Tokens & committed, int max_tokens, const SamplerOptions & sampling, bool with_q);
    Draft fresh(const Tokens & committed, int max_tokens, int width, bool probing, const SamplerOptions & sampling,
                bool with_q);
    Draft walk(const DraftedBlock & block, const Tokens & committed, int n_tokens, const SamplerOptions & sampling,
               bool with_q) const;
    Option cut(Draft draft, int max_tokens, int least, bool with_q) const;
    void splice(Draft & draft, int max_tokens);
    double draft_us(int n_tokens) const;
    int block_rows(int width) const;
    CostModel::Choice fresh_choice(int max_tokens, int least) const;
    CostModel::Choice ahead_choice(bool hopeful) const;
    bool wants_ahead(const Draft & draft);
    struct Flight;
    void draft_ahead(const Flight & flight);
    void learn_what_fresh_would_be(const Draft & draft, const Tokens & committed);
    Acceptance & acceptance(Source source) { return acceptance_[static_cast<std::size_t>(source)]; }
    const Acceptance & acceptance(Source source) const { return acceptance_[static_cast<std::size_t>(source)]; }

    std::shared_ptr<NgramMap> ngram_;
    std::shared_ptr<ModelDrafter> drafter_;
    std::shared_ptr<BlockDrafter> blocks_drafter_;  // drafter_ where it fills blocks
    std::shared_ptr<TokenDrafter> token_drafter_;   // drafter_ where it does not
    SpeculatorOptions options_;
    std::shared_ptr<NgramMap> library_;
    bool from_library_ = false;        // this step's proposal
    std::uint64_t seen_revision_ = 0;  // of the table, after this speculator's last use of it

    std::array<Acceptance, n_sources> acceptance_;
    Acceptance beside_acceptance_;   // of drafts that were ready when the verdict came
    double drafter_accepted_ = 1.0;  // tokens of a drafter's draft accepted lately, a moving mean

    CostCurves curves_;
    CostModel * cost_ = &curves_.at(0);  // at the present length of the text
    CostModel::Company company_;
    CostModel draft_cost_;       // of drafts, by their tokens instead of rows
    double beside_ratio_ = 1.0;  // of a verification beside a drafter's pass to one alone
    long n_beside_ = 0;          // verifications behind it
    CostModel beside_cost_;      // of drafter passes beside the target: 1: the anchor's, 2: for outcomes
    bool calibrated_ = false;

    int undrafted_ = 0;  // steps since the drafter was last asked
    int probe_after_ = first_probe;
    double table_gain_ = 1.0;  // of this step's table draft
    bool was_ahead_ = false;   // the last step drafted ahead
    int trial_ = 0;            // steps left of trying it
    int not_ahead_ = 0;        // steps since
    int try_ahead_after_ = first_probe;

    DraftedBlocks blocks_;
    AheadStats ahead_stats_;
    // Written by the worker's job, read when it has landed.
    struct Landed {
        std::vector<DraftedBlock> blocks;
        std::vector<Outcome> outcomes;  // drafted for
        WalkOptions noise;              // of the step's anchor; set before the job begins
        bool by_rejection = false;      // as that
        Landing landing;
        double base_us = 0.0;
        double outcomes_us = 0.0;
        bool failed = false;  // the drafter computes nothing of use any more
    };
    Landed landed_;
    std::shared_ptr<std::mutex> turn_ = std::make_shared<std::mutex>();
    Worker worker_;  // last: its job uses the others
};

}  // namespace dflash
