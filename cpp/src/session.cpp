#include "dflash/session.h"

#include <algorithm>
#include <stdexcept>

#include "dflash/error.h"
#include "dflash/log.h"

namespace dflash {

const char * finish_reason_name(FinishReason reason) {
    switch (reason) {
        case FinishReason::stop: return "stop";
        case FinishReason::length: return "length";
        case FinishReason::none: break;
    }
    return "none";
}

class Session::Entry {
public:
    explicit Entry(std::atomic<bool> & busy) : busy_(busy) {
        if (busy_.exchange(true)) {
            throw BusyError("this session is generating on another thread; use one LLM per thread, or wait");
        }
    }
    ~Entry() { busy_ = false; }

private:
    std::atomic<bool> & busy_;
};

// A drafter's pass beside the target's: whatever happens, it is over when this object is.
class Session::Flight {
public:
    Flight(Session & session, bool beside) : session_(session), beside_(beside) {
        if (beside_) {
            session_.target_->spare_threads(session_.speculator_.threads_beside());
        }
    }
    ~Flight() {
        if (beside_) {
            session_.speculator_.land();
            session_.target_->spare_threads(0);
        }
    }
    bool beside() const { return beside_; }

private:
    Session & session_;
    bool beside_;
};

Session::Session(std::shared_ptr<Target> target, std::shared_ptr<NgramMap> ngram,
                 std::shared_ptr<ModelDrafter> drafter, const SpeculatorOptions & options)
    : target_(std::move(target)), speculator_(std::move(ngram), std::move(drafter), options) {
    if (speculator_.ngram()) {
        speculator_.ngram()->bind_tokenizer(target_->tokenizer());
    }
}

void Session::begin(const Tokens & prompt, const GenerationOptions & options) {
    Entry entry(busy_);
    if (options.max_tokens < 1) {
        throw std::invalid_argument("max_tokens is " + std::to_string(options.max_tokens) + "; use 1 or more");
    }
    if (prompt.empty()) {
        throw std::invalid_argument("the prompt is empty; give at least one token");
    }
    target_->vocab().check(prompt);
    if (prompt.size() >= static_cast<std::size_t>(target_->n_ctx())) {
        throw ContextOverflowError("the prompt has " + std::to_string(prompt.size()) + " tokens, the context holds " +
                                   std::to_string(target_->n_ctx()) +
                                   " with the answer; use a larger n_ctx or a "
                                   "shorter prompt");
    }
    auto sampler = std::make_unique<Sampler>(target_->vocab(), options.sampler);
    TextStream text(options.stop);
    keep_common_prefix(prompt, prompt.size() - 1);
    sampler_ = std::move(sampler);
    sampler_->accept_prompt(prompt);
    text_ = std::move(text);
    options_ = options;
    committed_ = prompt;
    finish_reason_ = FinishReason::none;
    stats_ = {};
    stats_.n_prompt = static_cast<std::int64_t>(prompt.size());
    stats_.n_reused = target_->n_past();
    began_us_ = now_us();
    speculator_.begin(committed_);
    if (speculator_.needs_calibration() && target_->n_past() + Target::max_rows < target_->n_ctx()) {
        calibrate();
        began_us_ = now_us();
    }
    stats_.add_event({Event::Lane::host, "begin", 0, now_us() - began_us_});
}

Session::~Session() { save_costs(); }

void Session::keep_costs(const std::string & folder) {
    cost_key_ = target_->identity() + "|" + speculator_.identity() + "|" + DFLASH_VERSION + " " + DFLASH_LLAMA_TAG;
    cost_path_ = CostCurves::file_in(folder, cost_key_);
    speculator_.load_costs(cost_path_, cost_key_);
}

void Session::save_costs() const {
    // Costs met by chance, without a calibration, would pass for measured ones.
    if (cost_path_.empty() || !speculator_.has_drafter() || !speculator_.calibrated()) {
        return;
    }
    try {
        speculator_.save_costs(cost_path_, cost_key_);
    } catch (const std::runtime_error & error) {
        log(LogLevel::warn, std::string("cannot keep the cost curve: ") + error.what());
    }
}

void Session::calibrate() {
    const auto measure_us = [this](int n_rows, bool beside) {
        return target_->measure_us(n_rows, 1, beside ? speculator_.threads_beside() : 0);
    };
    speculator_.calibrate(measure_us, 1 + target_->max_draft(), target_->n_past() + 1);
    save_costs();
}

// Cuts the KV caches to what they share with `tokens`, at most `limit` positions.
void Session::keep_common_prefix(const Tokens & tokens, std::size_t limit) {
    const int known = std::min(target_->n_past(), speculator_.n_past());
    const std::size_t cached = std::min({static_cast<std::size_t>(known), committed_.size(), limit});
    const auto differs =
        std::mismatch(committed_.begin(), committed_.begin() + static_cast<std::ptrdiff_t>(cached), tokens.begin());
    target_->truncate(static_cast<int>(differs.first - committed_.begin()));
    speculator_.truncate(target_->n_past());
}

// The drafter takes in the first n_rows of the target's last pass.
void Session::absorb(int n_rows) {
    if (speculator_.has_drafter() && n_rows > 0) {
        const std::int64_t start = now_us();
        speculator_.absorb(n_rows);
        stats_.add_event({Event::Lane::drafter, "inject", start - began_us_, now_us() - began_us_, n_rows});
    }
}

int Session::prefill(int max_tokens) {
    Entry entry(busy_);
    if (finished()) {
        return 0;
    }
    const int prompt_end = static_cast<int>(stats_.n_prompt) - 1;  // the anchor is read by the first step
    const int n = std::min({max_tokens, target_->n_batch(), prompt_end - target_->n_past()});
    if (n > 0) {
        const std::int64_t start = now_us();
        target_->prefill(committed_.data() + target_->n_past(), n);
        stats_.add_event({Event::Lane::target, "prefill", start - began_us_, now_us() - began_us_, n});
        absorb(n);
        stats_.prefill_us += now_us() - start;
    }
    return prompt_end - target_->n_past();
}

// Draft tokens that max_tokens, the context and the target leave room for.
int Session::room() const {
    const int left_to_say = options_.max_tokens - static_cast<int>(stats_.n_completion);
    const int left_to_hold = target_->n_ctx() - target_->n_past() - 1;
    return std::min({left_to_say - 1, left_to_hold, Target::max_rows - 1, target_->max_draft()});
}

StepResult Session::step() {
    Entry entry(busy_);
    if (finished()) {
        throw std::logic_error("the generation is finished; call begin");
    }
    if (target_->n_past() + 1 != static_cast<int>(committed_.size())) {
        throw std::logic_error("the prompt is not read yet; call prefill");
    }
    const std::int64_t start = now_us();
    const Draft draft = speculator_.propose(committed_, room(), options_.sampler, by_rejection());
    Tokens rows{committed_.back()};
    rows.insert(rows.end(), draft.tokens.begin(), draft.tokens.end());

    const std::int64_t proposed = now_us();
    const bool goes_on = room() > 0;  // else the next token is the last
    const Flight flight(*this, goes_on && speculator_.launch(committed_, draft, options_.sampler, by_rejection()));
    const std::int64_t launched = now_us();
    target_->verify(rows.data(), static_cast<int>(rows.size()));
    const std::int64_t verified = now_us();
    const Verdict verdict = judge(draft);
    const std::int64_t sampled = now_us();
    StepResult result = commit(verdict);
    const std::int64_t committed = now_us();
    const Speculator::Landing landing = speculator_.land();
    const std::int64_t landed = now_us();
    absorb(static_cast<int>(result.tokens.size()));  // the anchor and what followed it, but the new anchor
    const std::int64_t absorbed = now_us();
    target_->truncate(static_cast<int>(committed_.size()) - 1);
    speculator_.learn(draft, verdict.n_accepted, committed_, static_cast<double>(verified - launched),
                      flight.beside());
    const std::int64_t end = now_us();

    const int n_rows = static_cast<int>(rows.size());
    const auto note = [this](Event::Lane lane, const char * name, std::int64_t from, std::int64_t to, int rows_in = 0,
                             int accepted = 0) {
        stats_.add_event({lane, name, from - began_us_, to - began_us_, rows_in, accepted});
    };
    const bool drafted = draft.source == Source::drafter;
    stats_.decode_us += end - start;
    stats_.add_step({draft.source, n_rows - 1, draft.n_spliced, verdict.n_accepted,
                     static_cast<int>(verdict.tokens.size()), verified - start, draft.expected_tokens(),
                     draft.expected_us, verified - launched, landing.within_us(launched, verified)});
    stats_.ahead = speculator_.ahead_stats();
    note(drafted ? Event::Lane::drafter : Event::Lane::host, drafted ? "draft" : "propose", start, proposed,
         drafted ? n_rows - 1 : 0);
    if (landing.n_rows > 0) {
        note(Event::Lane::drafter, "ahead", landing.start_us, landing.end_us, landing.n_rows);
    }
    note(Event::Lane::target, "verify", launched, verified, n_rows, verdict.n_accepted);
    note(Event::Lane::host, "sample", verified, sampled);
    note(Event::Lane::host, "commit", sampled, committed);
    if (landing.n_rows > 0) {
        note(Event::Lane::host, "wait", committed, landed);
    }
    note(Event::Lane::host, "learn", absorbed, end);
    if (finished()) {
        rest();
    }
    return result;
}

void Session::rest() {
    target_->rest();
    speculator_.rest();
}

bool Session::by_rejection() const { return options_.verification == Verification::rejection && !sampler_->greedy(); }

// The verdict on the rows just verified; moves the sampler on by the tokens that it commits.
Verdict Session::judge(const Draft & draft) {
    const auto position = static_cast<std::int64_t>(committed_.size());
    const Vocab vocab = target_->vocab();
    const auto is_end = [&vocab](Token token) { return vocab.is_end(token); };
    if (!by_rejection()) {
        const auto target_token = [&](int i) {
            const Token token = sampler_->sample(target_->row(i), position + i);
            sampler_->accept(token);
            return token;
        };
        return verify(draft.tokens, target_token, is_end);
    }
    const auto target_distribution = [&](int i) {
        if (i > 0) {
            sampler_->accept(draft.tokens[static_cast<std::size_t>(i - 1)]);
        }
        return sampler_->distribution(target_->row(i));
    };
    Verdict verdict =
        verify_by_rejection(draft.tokens, draft.q, target_distribution, is_end, options_.sampler.seed, position);
    sampler_->accept(verdict.tokens.back());
    return verdict;
}

// Appends the verdict's tokens to the text until something ends it.
StepResult Session::commit(const Verdict & verdict) {
    StepResult result;
    const Vocab vocab = target_->vocab();
    for (const Token token : verdict.tokens) {
        ++stats_.n_committed;
        if (vocab.is_end(token)) {
            finish_reason_ = FinishReason::stop;
            break;
        }
        committed_.push_back(token);
        result.tokens.push_back(token);
        ++stats_.n_completion;
        result.text += text_.push(vocab.piece(token, false));
        if (text_.stopped()) {
            finish_reason_ = FinishReason::stop;
            break;
        }
        const bool context_full = committed_.size() > static_cast<std::size_t>(target_->n_ctx());
        if (stats_.n_completion >= options_.max_tokens || context_full) {
            finish_reason_ = FinishReason::length;
            break;
        }
    }
    if (finished()) {
        result.text += text_.finish();
    }
    result.finish_reason = finish_reason_;
    return result;
}

void Session::reset() {
    Entry entry(busy_);
    target_->truncate(0);
    speculator_.truncate(0);
    committed_.clear();
    finish_reason_ = FinishReason::stop;
}

std::vector<float> Session::logits(const Tokens & tokens, int n_single) {
    Entry entry(busy_);
    target_->vocab().check(tokens);
    if (tokens.empty() || n_single < 1 || static_cast<std::size_t>(n_single) > tokens.size()) {
        throw std::invalid_argument("n_single is " + std::to_string(n_single) + "; use 1 to the number of tokens");
    }
    if (tokens.size() > static_cast<std::size_t>(target_->n_ctx())) {
        throw ContextOverflowError("the text has " + std::to_string(tokens.size()) + " tokens, the context holds " +
                                   std::to_string(target_->n_ctx()));
    }
    target_->truncate(0);
    speculator_.truncate(0);  // the drafter's features are not gathered here
    finish_reason_ = FinishReason::stop;
    committed_ = tokens;
    const int n_batched = static_cast<int>(tokens.size()) - n_single;
    while (target_->n_past() < n_batched) {
        target_->prefill(tokens.data() + target_->n_past(),
                         std::min(target_->n_batch(), n_batched - target_->n_past()));
    }
    while (target_->n_past() < static_cast<int>(tokens.size())) {
        target_->verify(tokens.data() + target_->n_past(), 1);
    }
    rest();
    const float * row = target_->row(0);
    return std::vector<float>(row, row + target_->vocab().size());
}

}  // namespace dflash
