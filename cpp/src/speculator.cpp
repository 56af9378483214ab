#include "dflash/speculator.h"

namespace dflash {

void Speculator::begin(const Tokens & tokens) {
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

Draft Speculator::propose(const Tokens & committed, int max_tokens) {
    if (!ngram_ || max_tokens < 1) {
        return {};
    }
    Proposal proposal;
    {
        const std::lock_guard<std::mutex> lock(ngram_->mutex());
        follow(committed);
        proposal = ngram_->propose(max_tokens);
        seen_revision_ = ngram_->revision();
    }
    const int width = cost_.best_width(proposal.probabilities).width;
    if (width == 0) {
        return {};
    }
    proposal.tokens.resize(static_cast<std::size_t>(width));
    return {std::move(proposal.tokens), Source::ngram};
}

void Speculator::learn(const Draft & draft, int n_accepted, const Tokens & committed, double verify_us) {
    const int n_offered = static_cast<int>(draft.tokens.size());
    cost_.observe(1 + n_offered, verify_us);
    if (!ngram_) {
        return;
    }
    const std::lock_guard<std::mutex> lock(ngram_->mutex());
    // A verdict on a proposal that another user's has replaced would teach the wrong value.
    if (draft.source == Source::ngram && ngram_->revision() == seen_revision_) {
        ngram_->accept(n_accepted, n_offered);
    }
    follow(committed);
    seen_revision_ = ngram_->revision();
}

}  // namespace dflash
