#include "dflash/slot.h"

#include <algorithm>
#include <utility>

namespace dflash {

Slot::Slot(std::shared_ptr<NgramMap> ngram, std::shared_ptr<ModelDrafter> drafter, const SpeculatorOptions & options,
           int feature_width)
    : speculator_(std::move(ngram), std::move(drafter), options), feature_width_(feature_width) {}

const Draft & Slot::draft(const Tokens & text, int max_tokens, const SamplerOptions & sampling, bool with_q) {
    speculator_.land();
    const bool goes_on = text.size() > text_.size() && std::equal(text_.begin(), text_.end(), text.begin());
    if (goes_on && drafted_) {
        learn(text);
    }
    if (!goes_on || text_.empty()) {
        speculator_.begin(text);
    }
    drafted_ = beside_ = false;
    text_ = text;
    absorb(static_cast<int>(text.size()) - 1);
    draft_ = speculator_.propose(text, max_tokens, sampling, with_q);
    drafted_ = true;
    verify_us_ = 0.0;
    beside_ = max_tokens > 0 && speculator_.launch(text, draft_, sampling, with_q);
    launched_us_ = now_us();
    return draft_;
}

void Slot::rows(int position, int n_rows, const float * features, const CostModel::Company & company) {
    const std::int64_t now = now_us();
    speculator_.land();
    if (drafted_ && verify_us_ == 0.0 && n_rows == 1 + static_cast<int>(draft_.tokens.size())) {
        verify_us_ = static_cast<double>(now - launched_us_);
        company_ = company;  // and in such company, most likely, the next pass will be
    }
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
    ++stats_.n_verifications;
    stats_.n_committed += n_new;
    stats_.ahead = speculator_.ahead_stats();
    stats_.add_step({draft_.source, static_cast<int>(draft_.tokens.size()), draft_.n_spliced, n_accepted, n_new,
                     static_cast<std::int64_t>(verify_us_), draft_.expected_tokens(), draft_.expected_us});
}

void Slot::clear() {
    speculator_.land();
    speculator_.truncate(0);
    text_.clear();
    stash_.clear();
    stash_position_ = 0;
    drafted_ = beside_ = false;
}

}  // namespace dflash
