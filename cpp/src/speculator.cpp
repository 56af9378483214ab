#include "dflash/speculator.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace dflash {

Speculator::Speculator(std::shared_ptr<NgramMap> ngram, std::shared_ptr<ModelDrafter> drafter, int width)
    : ngram_(std::move(ngram)), drafter_(std::move(drafter)), width_(width) {
    if (width < 1 || width >= CostModel::max_rows) {
        throw std::invalid_argument("width is " + std::to_string(width) + "; use 1 to " +
                                    std::to_string(CostModel::max_rows - 1));
    }
}

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

Draft Speculator::propose_from_table(const Tokens & committed, int max_tokens, double & expected) {
    expected = 0.0;
    if (!ngram_) {
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
    double survives = 1.0;
    for (int i = 0; i < width; ++i) {
        survives *= proposal.probabilities[static_cast<std::size_t>(i)];
        expected += survives;
    }
    proposal.tokens.resize(static_cast<std::size_t>(width));
    return {std::move(proposal.tokens), width > 0 ? Source::ngram : Source::none, {}};
}

Draft Speculator::propose(const Tokens & committed, int max_tokens, const SamplerOptions & sampling, bool with_q) {
    if (max_tokens < 1) {
        return {};
    }
    double expected = 0.0;
    Draft from_table = propose_from_table(committed, max_tokens, expected);
    if (!drafter_ || expected > drafter_accepted_) {
        return from_table;
    }
    // A block is not causal: the last ones are as long as the reference's, which leaves no room for the bonus.
    Draft drafted = drafter_->draft(committed, std::min(width_, max_tokens + 1), sampling, with_q);
    if (drafted.tokens.size() > static_cast<std::size_t>(max_tokens)) {
        drafted.tokens.resize(static_cast<std::size_t>(max_tokens));
        drafted.q.resize(std::min(drafted.q.size(), drafted.tokens.size()));
    }
    return drafted.tokens.empty() ? from_table : drafted;
}

void Speculator::learn(const Draft & draft, int n_accepted, const Tokens & committed, double verify_us) {
    const int n_offered = static_cast<int>(draft.tokens.size());
    cost_.observe(1 + n_offered, verify_us);
    if (draft.source == Source::drafter) {
        drafter_accepted_ += 0.1 * (n_accepted - drafter_accepted_);
    }
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
