#include "dflash/slot.h"

#include <algorithm>
#include <utility>

namespace dflash {
namespace {

// How many tokens were cut out of `before` at `kept`, where `now` is the rest and at most max_new tokens more; 0: that
// is not what happened.
int cut_out(const Tokens & before, const Tokens & now, std::size_t kept, int max_new) {
    for (int n_new = 1; n_new <= max_new; ++n_new) {
        const std::ptrdiff_t n_cut =
            static_cast<std::ptrdiff_t>(before.size()) + n_new - static_cast<std::ptrdiff_t>(now.size());
        if (n_cut <= 0 || kept + static_cast<std::size_t>(n_cut) >= before.size()) {
            continue;
        }
        const auto rest = before.begin() + static_cast<std::ptrdiff_t>(kept) + n_cut;
        if (std::equal(rest, before.end(), now.begin() + static_cast<std::ptrdiff_t>(kept))) {
            return static_cast<int>(n_cut);
        }
    }
    return 0;
}

}  // namespace

Slot::Slot(std::shared_ptr<NgramMap> ngram, std::shared_ptr<ModelDrafter> drafter, const SpeculatorOptions & options,
           int feature_width, std::shared_ptr<NgramMap> library)
    : speculator_(std::move(ngram), std::move(drafter), options),
      library_(std::move(library)),
      feature_width_(feature_width) {
    speculator_.consult(library_);
}

Slot::~Slot() { shelve(); }

void Slot::begin() {
    stats_ = {};
    drafted_ = beside_ = false;
}

const Draft & Slot::draft(const Tokens & text, int max_tokens, const SamplerOptions & sampling, bool with_q) {
    land(now_us());
    const bool goes_on =
        !text_.empty() && text.size() > text_.size() && std::equal(text_.begin(), text_.end(), text.begin());
    if (goes_on && drafted_) {
        learn(text);
    }
    if (!goes_on) {
        follow(text);
        speculator_.begin(text);
    }
    drafted_ = beside_ = read_ = false;
    text_ = text;
    absorb(static_cast<int>(text.size()) - 1);
    draft_ = speculator_.propose(text, max_tokens, sampling, with_q);
    drafted_ = true;
    n_accepted_ = 0;
    verify_us_ = 0.0;
    beside_us_ = 0;
    sampling_ = sampling;
    with_q_ = with_q;
    goes_on_ = max_tokens > 0;
    launched_us_ = now_us();
    return draft_;
}

bool Slot::launch() {
    if (!drafted_ || verify_us_ > 0.0) {
        return false;
    }
    landed_us_ = 0;
    beside_ = goes_on_ && speculator_.launch(text_, draft_, sampling_, with_q_);
    launched_us_ = now_us();
    return beside_;
}

void Slot::land(std::int64_t now_us) {
    if (landed_us_ == 0) {
        landing_ = speculator_.land();
        landed_us_ = now_us;
    }
}

// The text is another one. Where rows of it came, they told the drafter where it parts; where none did, the server has
// moved what was there.
void Slot::follow(const Tokens & text) {
    const auto differs = std::mismatch(text_.begin(), text_.end(), text.begin(), text.end());
    const auto kept = static_cast<std::size_t>(differs.first - text_.begin());
    const int n_cut = read_ ? 0 : cut_out(text_, text, kept, 1 + SpeculatorOptions::max_width);
    if (n_cut > 0) {
        speculator_.cut_out(static_cast<int>(kept), n_cut);
        stash_position_ -= n_cut;
    } else {
        shelve();
    }
}

// The text is done with: the library takes it.
void Slot::shelve() {
    if (library_ && !text_.empty()) {
        const std::lock_guard<std::mutex> lock(library_->mutex());
        library_->extend(text_);
        library_->truncate(0);
    }
}

bool Slot::verifies(int position, int n_rows) const {
    return drafted_ && verify_us_ == 0.0 && n_rows == 1 + static_cast<int>(draft_.tokens.size()) &&
           position + 1 == draft_.position;
}

void Slot::rows(int position, int n_rows, const float * features, const CostModel::Company & company) {
    land(now_us());
    const bool verification = verifies(position, n_rows);
    if (verification) {
        verify_us_ = static_cast<double>(std::max<std::int64_t>(1, landed_us_ - launched_us_));
        beside_us_ = landing_.within_us(launched_us_, landed_us_);
        company_ = company;  // and in such company, most likely, the next pass will be
    }
    read_ = read_ || !verification;
    const int stashed = feature_width_ > 0 ? static_cast<int>(stash_.size()) / feature_width_ : 0;
    // What stood at or behind this position was taken back, and is seen anew.
    const int kept = std::clamp(position - stash_position_, 0, stashed);
    stash_.resize(static_cast<std::size_t>(kept) * static_cast<std::size_t>(feature_width_));
    speculator_.truncate(position);
    if (!features || feature_width_ == 0) {
        return;
    }
    if (kept == 0 || stash_position_ + kept != position) {
        stash_.clear();
        stash_position_ = position;
    }
    stash_.insert(stash_.end(), features, features + static_cast<std::ptrdiff_t>(n_rows) * feature_width_);
    if (!verification) {
        absorb(position + n_rows);
    }
}

// The drafter takes in the features of the first n_tokens of the text, as far as they are there.
void Slot::absorb(int n_tokens) {
    speculator_.truncate(n_tokens);
    const int known = speculator_.n_past();
    if (known >= n_tokens || feature_width_ == 0) {
        return;
    }
    const int stashed = static_cast<int>(stash_.size()) / feature_width_;
    if (stash_position_ > known) {
        speculator_.skip_to(std::min(stash_position_, n_tokens));  // never seen here: a restored slot, an image
    }
    const int from = std::max(speculator_.n_past(), stash_position_);
    const int n = std::min(n_tokens, stash_position_ + stashed) - from;
    if (n > 0) {
        speculator_.absorb_rows(stash_.data() + static_cast<std::ptrdiff_t>(from - stash_position_) * feature_width_,
                                n);
    }
    if (speculator_.n_past() < n_tokens) {
        speculator_.skip_to(n_tokens);
    }
    stash_.clear();
    stash_position_ = n_tokens;
}

// What became of the draft: its tokens that stand, and the bonus token behind them.
void Slot::learn(const Tokens & text) {
    const auto n_new = static_cast<int>(text.size() - text_.size());
    int n_accepted = 0;
    while (n_accepted < std::min(n_new - 1, static_cast<int>(draft_.tokens.size())) &&
           draft_.tokens[static_cast<std::size_t>(n_accepted)] == text[text_.size() + std::size_t(n_accepted)]) {
        ++n_accepted;
    }
    speculator_.keep(company_);
    speculator_.learn(draft_, n_accepted, text, verify_us_, beside_);
    book(stats_, n_accepted, n_new);
}

void Slot::book(Stats & stats, int n_accepted, int n_new) const {
    stats.n_committed += n_new;
    stats.ahead = speculator_.ahead_stats();
    stats.add_step({draft_.source, static_cast<int>(draft_.tokens.size()), draft_.n_spliced, n_accepted, n_new,
                    static_cast<std::int64_t>(verify_us_), draft_.expected_tokens(), draft_.expected_us,
                    static_cast<std::int64_t>(verify_us_), beside_us_});
}

Stats Slot::stats() const {
    Stats stats = stats_;
    if (drafted_ && verify_us_ > 0.0) {
        book(stats, n_accepted_, n_accepted_ + 1);
    }
    return stats;
}

void Slot::clear() {
    land(now_us());
    shelve();
    speculator_.truncate(0);
    text_.clear();
    stash_.clear();
    stash_position_ = 0;
    drafted_ = beside_ = false;
}

}  // namespace dflash
