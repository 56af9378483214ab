#include "dflash/speculator.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

#include "dflash/error.h"
#include "dflash/log.h"

namespace dflash {
namespace {

// For decisions that must not look at a clock: rows cost what they usually do.
const CostModel unmeasured;

bool by_drafter(Source source) { return source != Source::none && source != Source::ngram; }

}  // namespace

Ahead ahead_of(const std::string & name) {
    if (name == "off") {
        return Ahead::off;
    }
    if (name == "on") {
        return Ahead::on;
    }
    if (name == "auto") {
        return Ahead::automatic;
    }
    throw std::invalid_argument("ahead is '" + name + "'; use auto, on or off");
}

Speculator::Speculator(std::shared_ptr<NgramMap> ngram, std::shared_ptr<ModelDrafter> drafter,
                       const SpeculatorOptions & options)
    : ngram_(std::move(ngram)), drafter_(std::move(drafter)), options_(options) {
    blocks_drafter_ = std::dynamic_pointer_cast<BlockDrafter>(drafter_);
    token_drafter_ = std::dynamic_pointer_cast<TokenDrafter>(drafter_);
    if (options.width < SpeculatorOptions::automatic || options.width > SpeculatorOptions::max_width) {
        throw std::invalid_argument("width is " + std::to_string(options.width) + "; use 1 to " +
                                    std::to_string(int(SpeculatorOptions::max_width)) + ", or 0 (automatic)");
    }
    if (options.n_outcomes < 1 || options.n_outcomes > 8) {
        throw std::invalid_argument("n_outcomes is " + std::to_string(options.n_outcomes) + "; use 1 to 8");
    }
    if (options.ahead == Ahead::on && !blocks_drafter_) {
        throw std::invalid_argument("ahead is on, which takes a DFlash drafter; use auto or off without one");
    }
}

// -- the cost model --------------------------------------------------------------------------------------------

bool Speculator::needs_calibration() const {
    return drafter_ && !calibrated_ && (automatic() || (options_.ahead != Ahead::off && blocks_drafter_));
}

void Speculator::calibrate(const Measure & measure_us, int max_rows, int n_context) {
    calibrated_ = true;
    cost_ = &curves_.at(n_context);
    double spent_us = 0.0;
    const auto measure = [&](int n_rows) {
        for (int i = 0; i < 3; ++i) {
            const double us = measure_us(n_rows, false);
            spent_us += us;
            // The first pass of a shape also lays out its graph, which a slow pass hides.
            if (i > 0 || us > 2e5) {
                cost_->observe(n_rows, us);
            }
            if (spent_us > 1e6) {
                return;
            }
        }
    };
    // The most telling ones first: a slow target gets no further.
    for (const int n_rows : {1, 4, 2, 8, 16, 6, 3, 32, 12}) {
        if (n_rows <= max_rows && spent_us < 1e6) {
            measure(n_rows);
        }
    }
    if (!blocks_drafter_) {
        return;
    }
    try {
        blocks_drafter_->run_beside(false);
        for (const int n_tokens : {2, 5, blocks_drafter_->max_tokens()}) {
            for (int i = 0; i < 3; ++i) {
                const std::int64_t start = now_us();
                blocks_drafter_->revealed_lattices({{0}}, n_tokens);
                if (i > 0) {
                    draft_cost_.observe(std::min(n_tokens, blocks_drafter_->max_tokens()),
                                        static_cast<double>(now_us() - start));
                }
            }
        }
        if (options_.ahead == Ahead::off) {
            return;
        }
        // Both at once, as drafting ahead will have them.
        const int n_rows = std::min(4, max_rows);
        const auto all = blocks_drafter_->max_tokens();
        const std::vector<Tokens> prefixes(static_cast<std::size_t>(options_.n_outcomes), Tokens{0});
        blocks_drafter_->run_beside(true);
        for (int i = 0; i < 3; ++i) {
            std::int64_t at[3] = {};
            worker_.start([&] {
                at[0] = now_us();
                blocks_drafter_->revealed_lattices({{0}}, all);
                at[1] = now_us();
                blocks_drafter_->revealed_lattices(prefixes, all);
                at[2] = now_us();
            });
            const double us = measure_us(n_rows, true);
            worker_.wait();
            if (i > 0) {
                beside_cost_.observe(base_pass, static_cast<double>(at[1] - at[0]));
                beside_cost_.observe(outcomes_pass, static_cast<double>(at[2] - at[1]));
                const double ratio = us / cost_->verify_us(n_rows);
                beside_ratio_ = i == 1 ? ratio : std::min(beside_ratio_, ratio);
            }
        }
    } catch (const Error & error) {
        give_up(error.what());
    }
}

void Speculator::save_costs(const std::string & path, const std::string & key) const {
    curves_.save(path, key, {{draft_cost_, beside_cost_}, {beside_ratio_}});
}

bool Speculator::load_costs(const std::string & path, const std::string & key) {
    CostCurves::Others others;
    if (!curves_.load(path, key, others) || others.models.size() != 2 || others.numbers.size() != 1) {
        return false;
    }
    draft_cost_ = others.models[0];
    beside_cost_ = others.models[1];
    beside_ratio_ = others.numbers[0];
    calibrated_ = true;
    return true;
}

void Speculator::take_costs(const Speculator & other) {
    curves_ = other.curves_;
    draft_cost_ = other.draft_cost_;
    beside_cost_ = other.beside_cost_;
    beside_ratio_ = other.beside_ratio_;
    calibrated_ = other.calibrated_;
}

std::string Speculator::identity() const {
    return std::to_string(drafter_ ? drafter_->model_bytes() : 0) + "|" + std::to_string(threads_beside()) + "|" +
           std::to_string(static_cast<int>(options_.ahead)) + "|" + std::to_string(options_.n_outcomes);
}

double Speculator::draft_us(int n_tokens) const {
    return draft_cost_.measured() ? draft_cost_.verify_us(n_tokens) : 0.5 * cost_->single_us();
}

// -- the drafter, guarded ----------------------------------------------------------------------------------------

void Speculator::give_up(const std::string & why) {
    if (drafter_ && !why.empty()) {
        log(LogLevel::warn, "the drafter failed (" + why + "); going on without it");
    }
    drafter_.reset();
    blocks_drafter_.reset();
    token_drafter_.reset();
    blocks_.clear();
}

// Lets the drafter, where there is one, do something that may fail.
void Speculator::guard(const std::function<void(ModelDrafter &)> & use) {
    if (!drafter_) {
        return;
    }
    try {
        use(*drafter_);
    } catch (const Error & error) {
        give_up(error.what());
    }
}

void Speculator::absorb(int n_rows) {
    guard([&](ModelDrafter & drafter) { drafter.absorb(n_rows); });
}

void Speculator::absorb_rows(const float * features, int n_rows) {
    guard([&](ModelDrafter & drafter) { drafter.absorb_rows(features, n_rows); });
}

void Speculator::skip_to(int n_tokens) {
    guard([&](ModelDrafter & drafter) { drafter.skip_to(n_tokens); });
}

void Speculator::truncate(int n_tokens) {
    guard([&](ModelDrafter & drafter) { drafter.truncate(n_tokens); });
}

void Speculator::cut_out(int from, int n_tokens) {
    guard([&](ModelDrafter & drafter) { drafter.cut_out(from, n_tokens); });
}

int Speculator::n_past() const { return drafter_ ? drafter_->n_past() : std::numeric_limits<int>::max(); }

// -- the table ---------------------------------------------------------------------------------------------------

void Speculator::begin(const Tokens & tokens) {
    blocks_.clear();
    was_ahead_ = false;
    ahead_stats_ = {};
    if (ngram_) {
        const std::lock_guard<std::mutex> lock(ngram_->mutex());
        ngram_->assign(tokens);
        seen_revision_ = ngram_->revision();
    }
}

// Brings the table's context to the committed text; cheap where nobody else touched the table.
void Speculator::follow(const Tokens & committed) {
    const std::size_t known = ngram_->size();
    if (ngram_->revision() == seen_revision_ && known <= committed.size()) {
        ngram_->extend(committed.data() + known, committed.size() - known);
    } else {
        ngram_->assign(committed);
    }
}

Speculator::Option Speculator::from_table(const Tokens & committed, int max_tokens, bool with_q) {
    Option option;
    if (!ngram_) {
        return option;
    }
    Proposal proposal;
    {
        const std::lock_guard<std::mutex> lock(ngram_->mutex());
        follow(committed);
        proposal = ngram_->propose(max_tokens);
        seen_revision_ = ngram_->revision();
    }
    from_library_ = library_ && proposal.tokens.empty();
    if (from_library_) {
        const auto n = std::min<std::size_t>(committed.size(), NgramMap::max_match);
        const std::lock_guard<std::mutex> lock(library_->mutex());
        proposal = library_->propose_after(Tokens(committed.end() - static_cast<std::ptrdiff_t>(n), committed.end()),
                                           max_tokens);
    }
    const CostModel & cost = with_q && !automatic() ? unmeasured : *cost_;
    const CostModel::Choice choice = cost.best_width(proposal.probabilities);
    if (choice.width > 0) {
        const auto width = static_cast<std::size_t>(choice.width);
        proposal.tokens.resize(width);
        proposal.probabilities.resize(width);
        option.gain = choice.gain;
        option.draft.source = Source::ngram;
        option.draft.tokens = std::move(proposal.tokens);
        option.draft.acceptance = std::move(proposal.probabilities);
    }
    return option;
}

// -- the drafter's options -----------------------------------------------------------------------------------------

Draft Speculator::walk(const DraftedBlock & block, const Tokens & committed, int n_tokens,
                       const SamplerOptions & sampling, bool with_q) const {
    WalkOptions options;
    options.first_position = block.first_position(committed);
    options.n_tokens = n_tokens;
    options.predecessor = committed.back();
    options.temperature = sampling.temperature;
    options.seed = sampling.seed;
    options.anchor_position = block.anchor_position;
    Path path = block.lattice.walk(options);
    Draft draft;
    draft.source = draft.walked_by = block.source(static_cast<int>(committed.size()));
    draft.walked = std::move(path.tokens);
    for (const std::vector<TokenProbability> & row : path.q) {
        float most = 0.0f;
        for (const TokenProbability & entry : row) {
            most = std::max(most, entry.probability);
        }
        draft.confidence.push_back(most);
    }
    if (with_q) {
        draft.q = std::move(path.q);
    }
    return draft;
}

// Offers the beginning of the draft's walk: the fixed width of it, or what pays, but no less than `least` tokens.
//
// Rejection sampling is exact only where the decision to offer a token did not look at it: there the width follows
// from positions alone, elsewhere from how sure the drafter is.
Speculator::Option Speculator::cut(Draft draft, int max_tokens, int least, bool with_q) const {
    const int n = std::min(static_cast<int>(draft.walked.size()), max_tokens);
    const Acceptance & seen = acceptance(draft.walked_by);
    const bool by_position = with_q || draft.confidence.empty();
    draft.acceptance = by_position ? seen.probabilities(n) : seen.probabilities(draft.confidence);
    draft.acceptance.resize(static_cast<std::size_t>(automatic() ? n : std::min(n, options_.width)));
    const CostModel & cost = with_q && !automatic() ? unmeasured : *cost_;
    const int narrowest = automatic() ? std::min(n, least) : static_cast<int>(draft.acceptance.size());
    const CostModel::Choice choice = cost.best_width(draft.acceptance, {}, narrowest);
    const auto width = static_cast<std::size_t>(choice.width);
    draft.acceptance.resize(width);
    draft.tokens.assign(draft.walked.begin(), draft.walked.begin() + static_cast<std::ptrdiff_t>(width));
    draft.q.resize(std::min(draft.q.size(), width));
    if (with_q) {
        draft.walked.resize(width);
    }
    draft.source = width > 0 ? draft.walked_by : Source::none;
    return {std::move(draft), choice.gain};
}

// What a block drafted earlier offers now.
Speculator::Option Speculator::from_block(const Tokens & committed, int max_tokens, const SamplerOptions & sampling,
                                          bool with_q) {
    const DraftedBlock * block = blocks_drafter_ ? blocks_.best(committed) : nullptr;
    if (!block) {
        return {};
    }
    const int most = automatic() ? int(widest) : options_.width;
    return cut(walk(*block, committed, std::min(most, max_tokens), sampling, with_q), max_tokens, 0, with_q);
}

// The width to ask a fresh draft for, and what it then gains.
CostModel::Choice Speculator::fresh_choice(int max_tokens, int least) const {
    const int most = automatic() ? int(widest) : options_.width;
    const std::vector<float> hopes = acceptance(Source::drafter).probabilities(std::min(max_tokens, most));
    return cost_->best_width(hopes, [this](int n_tokens) { return draft_us(n_tokens); }, least);
}

// Rows of a block to compute where `width` tokens of it are to be offered: more, where going on in it is planned.
int Speculator::block_rows(int width) const {
    const int all = blocks_drafter_->max_tokens();
    if (options_.ahead == Ahead::on || was_ahead_) {
        return std::max(width, all);
    }
    if (options_.ahead == Ahead::off || !automatic()) {
        return width;
    }
    // One draft for two verifications, or one for each?
    const auto expected = [](const std::vector<float> & hopes) {
        Draft draft;
        draft.acceptance = hopes;
        return draft.expected_tokens();
    };
    const double fresh = expected(acceptance(Source::drafter).probabilities(width));
    const Acceptance & continued = acceptance(Source::continued);
    const double second =
        continued.n_drafts() >= 8 ? expected(continued.probabilities(width)) : 1.0 + 0.45 * (fresh - 1.0);
    const double verify_us = cost_->verify_us(1 + width);
    const double each = fresh / (verify_us + draft_us(width));
    const double both = (fresh + second) / (2.0 * verify_us + draft_us(all));
    return both > hysteresis * each ? std::max(width, all) : width;
}

// Asks the drafter now, the target waiting. Empty where it gives nothing.
Draft Speculator::fresh(const Tokens & committed, int max_tokens, int width, bool probing,
                        const SamplerOptions & sampling, bool with_q) {
    // A block is not causal: the last ones are as long as the reference's, which leaves no room for the bonus.
    const int wanted = std::min(width, max_tokens + 1);
    const std::int64_t start = now_us();
    Draft draft;
    int n_drafted = 0;
    try {
        if (blocks_drafter_) {
            const int n_rows = probing ? wanted : block_rows(wanted);
            blocks_drafter_->run_beside(false);
            std::vector<Lattice> drafted = blocks_drafter_->revealed_lattices({{committed.back()}}, n_rows);
            if (drafted.empty()) {
                give_up("");  // it has said why
                return {};
            }
            DraftedBlock block{static_cast<int>(committed.size()) - 1, {committed.back()}, std::move(drafted[0])};
            draft = walk(block, committed, wanted, sampling, with_q);
            n_drafted = block.lattice.size();
            blocks_.add({std::move(block)});
        } else {
            Path path = token_drafter_->draft(committed, wanted, sampling, with_q);
            n_drafted = static_cast<int>(path.tokens.size());
            draft.walked = std::move(path.tokens);
            draft.q = std::move(path.q);
            draft.walked_by = Source::drafter;
        }
    } catch (const Interrupted &) {
        throw;
    } catch (const Error & error) {
        give_up(error.what());
        return {};
    }
    const double us = static_cast<double>(now_us() - start);
    draft_cost_.observe(n_drafted, us);
    draft = cut(std::move(draft), max_tokens, probing ? probed_width : 0, with_q).draft;
    draft.expected_us = us;
    return draft;
}

// What the table knows to follow the drafter's tokens is offered behind them, as far as that pays. Rejection sampling
// goes without: how far the draft goes would depend on the tokens drawn.
void Speculator::splice(Draft & draft, int max_tokens) {
    const int n = static_cast<int>(draft.tokens.size());
    if (!ngram_ || n == 0 || n >= max_tokens) {
        return;
    }
    Proposal proposal;
    {
        const std::lock_guard<std::mutex> lock(ngram_->mutex());
        if (ngram_->revision() == seen_revision_) {
            proposal = ngram_->propose_after(draft.tokens, max_tokens - n);
        }
    }
    std::vector<float> acceptance = draft.acceptance;
    acceptance.insert(acceptance.end(), proposal.probabilities.begin(), proposal.probabilities.end());
    const int width = cost_->best_width(acceptance, {}, n).width;
    draft.n_spliced = width - n;
    draft.tokens.insert(draft.tokens.end(), proposal.tokens.begin(), proposal.tokens.begin() + draft.n_spliced);
    acceptance.resize(static_cast<std::size_t>(width));
    draft.acceptance = std::move(acceptance);
}

// -- the decision --------------------------------------------------------------------------------------------------

Draft Speculator::propose(const Tokens & committed, int max_tokens, const SamplerOptions & sampling, bool with_q) {
    cost_ = &curves_.at(static_cast<int>(committed.size()));
    cost_->keep(company_);
    Draft best;
    if (max_tokens >= 1) {
        Option table = from_table(committed, max_tokens, with_q);
        table_gain_ = table.gain;
        const bool may_continue = options_.ahead != Ahead::off;
        Option ready = may_continue ? from_block(committed, max_tokens, sampling, with_q) : Option();
        const bool is_ready = !ready.draft.walked.empty();
        // While the drafter works beside the target, waiting for it would undo that.
        const bool keep_going = is_ready && (options_.ahead == Ahead::on || was_ahead_);
        const bool prefers_table = table.draft.expected_tokens() - 1.0 > drafter_accepted_;
        if (drafter_ && !automatic() && !prefers_table) {
            const int least = std::min(options_.width, max_tokens);
            if (keep_going || (is_ready && ready.gain > fresh_choice(max_tokens, least).gain)) {
                best = std::move(ready.draft);
            } else {
                best = fresh(committed, max_tokens, options_.width, false, sampling, with_q);
            }
        } else if (drafter_ && automatic()) {
            const CostModel::Choice plan = fresh_choice(max_tokens, 0);
            const bool by_fresh = !keep_going && plan.width > 0 && plan.gain > ready.gain;
            const double gain = by_fresh ? plan.gain : ready.gain;
            if (gain > 1.0 && gain > table.gain) {
                undrafted_ = 0;
                probe_after_ = first_probe;
                best = by_fresh ? fresh(committed, max_tokens, plan.width, false, sampling, with_q)
                                : std::move(ready.draft);
            } else if (!keep_going && table.gain <= 1.0 && ++undrafted_ >= probe_after_) {
                undrafted_ = 0;
                probe_after_ = std::min(2 * probe_after_, int(last_probe));
                const int width = fresh_choice(max_tokens, std::min(int(probed_width), max_tokens)).width;
                best = fresh(committed, max_tokens, width, true, sampling, with_q);
            }
        }
        if (best.tokens.empty() && !table.draft.tokens.empty()) {
            best.tokens = std::move(table.draft.tokens);
            best.acceptance = std::move(table.draft.acceptance);
            best.source = Source::ngram;
            best.q.clear();
        }
        // What the drafter would have said teaches, too.
        if (best.walked.empty() && !with_q) {
            best.walked = std::move(ready.draft.walked);
            best.confidence = std::move(ready.draft.confidence);
            best.walked_by = ready.draft.walked_by;
        }
    }
    if (by_drafter(best.source) && !with_q) {
        splice(best, max_tokens);
    }
    best.position = static_cast<int>(committed.size());
    best.expected_us += cost_->verify_us(1 + static_cast<int>(best.tokens.size())) * (was_ahead_ ? beside_ratio_ : 1);
    return best;
}

// What drafting beside every verification is worth: at what width, and what it gains over plain decoding.
// hopeful: ready drafts are taken to be as good as fresh ones.
CostModel::Choice Speculator::ahead_choice(bool hopeful) const {
    const int n = automatic() ? std::min(int(widest), blocks_drafter_->max_tokens()) : options_.width;
    const bool known = beside_acceptance_.n_drafts() >= trial_steps;
    std::vector<float> hopes =
        (known && !hopeful ? beside_acceptance_ : acceptance(Source::drafter)).probabilities(n);
    if (!known && !hopeful) {
        for (float & hope : hopes) {
            hope *= 0.7f + 0.3f * hope;  // the surer the drafter, the more often its outcomes come true
        }
    }
    const bool timed = beside_cost_.measured();
    const double pass_us = timed ? beside_cost_.verify_us(base_pass) : draft_us(blocks_drafter_->max_tokens());
    const auto waiting_us = [&](int width) {
        const double alone = cost_->verify_us(1 + width);
        return std::max(alone * beside_ratio_, pass_us * (1 + company_.texts)) - alone;
    };
    return cost_->best_width(hopes, waiting_us, automatic() ? 1 : options_.width);
}

bool Speculator::wants_ahead(const Draft & draft) {
    if (!blocks_drafter_ || options_.ahead == Ahead::off) {
        return false;
    }
    if (options_.ahead == Ahead::on) {
        return true;
    }
    if (!cost_->measured()) {
        return false;  // first what the target costs alone
    }
    if (draft.source == Source::ngram && table_gain_ > 1.0 && beside_ratio_ > 1.05) {
        return false;  // the table does well, and the drafter would slow the target down
    }
    if (trial_ > 0) {
        --trial_;
        return true;
    }
    const int least = automatic() ? 0 : options_.width;
    const double in_turn = fresh_choice(SpeculatorOptions::max_width, least).gain;
    const double needed = std::max(automatic() ? 1.0 : 0.0, in_turn) * (was_ahead_ ? 1.0 : hysteresis);
    if (ahead_choice(false).gain > needed) {
        try_ahead_after_ = first_probe;
        return true;
    }
    if (++not_ahead_ >= try_ahead_after_ && ahead_choice(true).gain > needed) {
        not_ahead_ = 0;
        try_ahead_after_ = std::min(2 * try_ahead_after_, int(last_probe));
        trial_ = trial_steps - 1;
        return true;
    }
    return false;
}

// What the worker's job needs to know of the step that it runs beside.
struct Speculator::Flight {
    Tokens draft;
    std::vector<float> acceptance;  // of a draft that is not the drafter's; else empty
    Token anchor;
    int anchor_position;
    int next_width;
    Lattice base;  // the anchor's block where it is there already; else empty
    std::int64_t launched_us;
    double verify_us;    // how long it may last where time counts; 0: it does not
    double outcomes_us;  // how long the pass for outcomes lasts
    WalkOptions noise;
};

// On the worker's thread: the block at the anchor, then the blocks of the likeliest outcomes by what it says.
void Speculator::draft_ahead(const Flight & flight) {
    const std::lock_guard<std::mutex> turn(*turn_);
    const int all = blocks_drafter_->max_tokens();
    const std::int64_t start = landed_.landing.start_us = now_us();
    const auto too_late = [&](double us) {
        return flight.verify_us > 0.0 &&
               static_cast<double>(now_us() - flight.launched_us) + us > 1.1 * flight.verify_us;
    };
    if (too_late(0.0)) {
        return;  // others drafted all the while
    }
    const Lattice * base = &flight.base;
    if (base->empty()) {
        std::vector<Lattice> drafted = blocks_drafter_->revealed_lattices({{flight.anchor}}, all);
        if (drafted.empty()) {
            landed_.failed = true;
            return;
        }
        landed_.blocks.push_back({flight.anchor_position, {flight.anchor}, std::move(drafted[0])});
        base = &landed_.blocks.back().lattice;
        landed_.landing.n_rows += all + 1;
        landed_.base_us = static_cast<double>(now_us() - start);
    }
    const std::int64_t based = landed_.landing.end_us = now_us();
    if (too_late(flight.outcomes_us)) {
        return;  // going on in the block at the anchor must do
    }
    std::vector<Outcome> outcomes =
        likely_outcomes(*base, flight.draft, flight.acceptance, options_.n_outcomes, flight.noise);
    std::vector<Tokens> prefixes;
    std::size_t longest = 0;
    for (const Outcome & outcome : outcomes) {
        if (outcome.n_accepted + 2 > all) {
            continue;
        }
        Tokens prefix{flight.anchor};
        prefix.insert(prefix.end(), flight.draft.begin(), flight.draft.begin() + outcome.n_accepted);
        prefix.push_back(outcome.bonus);
        longest = std::max(longest, prefix.size());
        prefixes.push_back(std::move(prefix));
        landed_.outcomes.push_back(outcome);
    }
    if (prefixes.empty()) {
        return;
    }
    const int n_tokens = std::min(all, static_cast<int>(longest) - 1 + flight.next_width);
    std::vector<Lattice> drafted = blocks_drafter_->revealed_lattices(prefixes, n_tokens);
    landed_.failed = drafted.empty();
    for (std::size_t i = 0; i < drafted.size(); ++i) {
        landed_.blocks.push_back({flight.anchor_position, std::move(prefixes[i]), std::move(drafted[i])});
    }
    landed_.landing.n_rows += static_cast<int>(drafted.size()) * (n_tokens + 1);
    landed_.landing.end_us = now_us();
    landed_.outcomes_us = static_cast<double>(landed_.landing.end_us - based);
}

bool Speculator::launch(const Tokens & committed, const Draft & draft, const SamplerOptions & sampling, bool with_q) {
    landed_ = {};
    was_ahead_ = wants_ahead(draft);
    if (!was_ahead_) {
        return false;
    }
    Flight flight;
    flight.draft = draft.tokens;
    if (!by_drafter(draft.source)) {
        flight.acceptance = draft.acceptance;
    }
    flight.anchor = committed.back();
    flight.anchor_position = static_cast<int>(committed.size()) - 1;
    flight.next_width = std::max(2, automatic() ? ahead_choice(false).width : options_.width);
    if (const DraftedBlock * base = blocks_.base(flight.anchor_position)) {
        flight.base = base->lattice;
    }
    const bool timed = options_.ahead == Ahead::automatic;
    flight.verify_us = timed ? cost_->verify_us(1 + static_cast<int>(draft.tokens.size())) * beside_ratio_ : 0.0;
    flight.outcomes_us = beside_cost_.verify_us(outcomes_pass);
    flight.launched_us = now_us();
    flight.noise.temperature = with_q ? 0.0f : sampling.temperature;
    flight.noise.seed = sampling.seed;
    flight.noise.anchor_position = flight.anchor_position;
    landed_.noise = flight.noise;
    landed_.by_rejection = with_q;
    try {
        blocks_drafter_->run_beside(true);
        worker_.start([this, flight = std::move(flight)] { draft_ahead(flight); });
    } catch (const std::system_error & error) {
        log(LogLevel::warn, std::string("no thread to draft on (") + error.what() + "); drafting in turn");
        options_.ahead = Ahead::off;
        was_ahead_ = false;
        return false;
    }
    ++ahead_stats_.n_launched;
    return true;
}

Speculator::Landing Speculator::land() {
    if (!worker_.in_flight()) {
        return {};
    }
    try {
        worker_.wait();
    } catch (const std::exception & error) {
        give_up(error.what());
        return {};
    }
    if (landed_.failed) {
        give_up("");  // it has said why
        return {};
    }
    beside_cost_.observe(base_pass, landed_.base_us);
    beside_cost_.observe(outcomes_pass, landed_.outcomes_us);
    ahead_stats_.n_outcomes += static_cast<std::int64_t>(landed_.outcomes.size());
    blocks_.add(std::move(landed_.blocks));
    landed_.blocks.clear();
    return landed_.landing;
}

// The block at this step's anchor came too late to be offered. It is what a fresh draft would have been: how it
// would have fared tells what drafting in turn is worth.
void Speculator::learn_what_fresh_would_be(const Draft & draft, const Tokens & committed) {
    const DraftedBlock * base = blocks_.base(draft.position - 1);
    const int n_known = static_cast<int>(committed.size()) - draft.position;
    if (!base || landed_.by_rejection || draft.walked_by == Source::drafter || n_known < 1) {
        return;
    }
    WalkOptions options = landed_.noise;
    options.n_tokens = n_known;
    const Path path = base->lattice.walk(options);
    const auto n = static_cast<std::ptrdiff_t>(path.tokens.size());
    const auto differs =
        std::mismatch(path.tokens.begin(), path.tokens.end(), committed.begin() + draft.position).first;
    acceptance(Source::drafter)
        .observe(static_cast<int>(differs - path.tokens.begin()), static_cast<int>(n), path.probabilities);
}

void Speculator::learn(const Draft & draft, int n_accepted, const Tokens & committed, double verify_us, bool beside) {
    const int n_offered = static_cast<int>(draft.tokens.size());
    if (beside && verify_us > 0.0) {
        const double ratio = std::clamp(verify_us / cost_->whole_us(1 + n_offered), 0.5, 8.0);
        beside_ratio_ += std::max(0.1, 1.0 / (++n_beside_ + 1)) * (ratio - beside_ratio_);
    } else if (!beside) {
        cost_->observe(1 + n_offered, verify_us);
    }
    const int n_known = std::min(static_cast<int>(committed.size()) - draft.position, int(draft.walked.size()));
    int n_right = 0;
    while (n_right < n_known && draft.walked[static_cast<std::size_t>(n_right)] ==
                                    committed[static_cast<std::size_t>(draft.position + n_right)]) {
        ++n_right;
    }
    if (n_known > 0) {
        acceptance(draft.walked_by).observe(n_right, n_known, draft.confidence);
        if (draft.walked_by != Source::drafter) {
            beside_acceptance_.observe(n_right, n_known);
        }
    }
    if (by_drafter(draft.source)) {
        const int n_own = std::min(n_accepted, n_offered - draft.n_spliced);
        drafter_accepted_ += 0.1 * (n_own - drafter_accepted_);
    }
    if (beside) {
        learn_what_fresh_would_be(draft, committed);
    }
    const auto bonus_at = static_cast<std::size_t>(draft.position + n_accepted);
    const std::vector<Outcome> & outcomes = landed_.outcomes;
    for (std::size_t rank = 0; beside && rank < outcomes.size() && bonus_at < committed.size(); ++rank) {
        if (outcomes[rank].n_accepted == n_accepted && outcomes[rank].bonus == committed[bonus_at]) {
            ++ahead_stats_.n_hits;
            ahead_stats_.hits_at.resize(std::max(ahead_stats_.hits_at.size(), rank + 1));
            ++ahead_stats_.hits_at[rank];
        }
    }
    if (!ngram_) {
        return;
    }
    const std::lock_guard<std::mutex> lock(ngram_->mutex());
    // A verdict on a proposal that another user's has replaced would teach the wrong value.
    if (draft.source == Source::ngram && !from_library_ && ngram_->revision() == seen_revision_) {
        ngram_->accept(n_accepted, n_offered);
    }
    follow(committed);
    seen_revision_ = ngram_->revision();
}

}  // namespace dflash
