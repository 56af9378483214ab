#include "dflash/speculator.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace dflash {

Speculator::Speculator(std::shared_ptr<NgramMap> ngram, std::shared_ptr<ModelDrafter> drafter, int width)
    : ngram_(std::move(ngram)), drafter_(std::move(drafter)), width_(width) {
    if (width < automatic || width >= CostModel::max_rows) {
        throw std::invalid_argument("width is " + std::to_string(width) + "; use 1 to " +
                                    std::to_string(CostModel::max_rows - 1) + ", or 0 (automatic)");
    }
}

void Speculator::calibrate(const std::function<double(int)> & measure_us, int max_rows) {
    calibrated_ = true;
    double spent_us = 0.0;
    for (const int n_rows : {1, 4, 2, 6, 3, 8, 12}) {
        for (int i = 0; i < 3 && n_rows <= max_rows; ++i) {
            const double us = measure_us(n_rows);
            spent_us += us;
            // The first pass of a shape also lays out its graph, which a slow pass hides.
            if (i > 0 || us > 2e5) {
                cost_.observe(n_rows, us);
            }
            if (spent_us > 1e6) {
                return;
            }
        }
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

Draft Speculator::propose_from_table(const Tokens & committed, int max_tokens, double & expected, double & gain) {
    expected = 0.0;
    gain = 1.0;
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
    const CostModel::Choice choice = cost_.best_width(proposal.probabilities);
    const int width = choice.width;
    gain = choice.gain;
    double survives = 1.0;
    for (int i = 0; i < width; ++i) {
        survives *= proposal.probabilities[static_cast<std::size_t>(i)];
        expected += survives;
    }
    proposal.tokens.resize(static_cast<std::size_t>(width));
    return {std::move(proposal.tokens), width > 0 ? Source::ngram : Source::none, {}};
}

// How many tokens to ask the drafter for; 0: do not run it.
int Speculator::drafter_width(int max_tokens, double expected_of_table, double gain_of_table) {
    if (!drafter_) {
        return 0;
    }
    if (width_ != automatic) {
        return expected_of_table > drafter_accepted_ ? 0 : width_;
    }
    const std::vector<float> hopes = drafter_acceptance_.probabilities(std::min(max_tokens, int(widest)));
    const auto draft_us = [this](int n_tokens) {
        return draft_cost_.measured() ? draft_cost_.verify_us(n_tokens) : 0.5 * cost_.single_us();
    };
    const CostModel::Choice choice = cost_.best_width(hopes, draft_us);
    if (choice.width > 0 && choice.gain > gain_of_table) {
        probe_after_ = first_probe;
        return choice.width;
    }
    if (++undrafted_ < probe_after_ || gain_of_table > 1.0) {
        return 0;
    }
    probe_after_ = std::min(2 * probe_after_, int(last_probe));
    return cost_.best_width(hopes, draft_us, std::min(2, max_tokens)).width;
}

Draft Speculator::propose(const Tokens & committed, int max_tokens, const SamplerOptions & sampling, bool with_q) {
    if (max_tokens < 1) {
        return {};
    }
    double expected = 0.0;
    double gain = 1.0;
    Draft from_table = propose_from_table(committed, max_tokens, expected, gain);
    const int width = drafter_width(max_tokens, expected, gain);
    if (width < 1) {
        return from_table;
    }
    undrafted_ = 0;
    const std::int64_t start = now_us();
    // A block is not causal: the last ones are as long as the reference's, which leaves no room for the bonus.
    Draft drafted = drafter_->draft(committed, std::min(width, max_tokens + 1), sampling, with_q);
    draft_cost_.observe(static_cast<int>(drafted.tokens.size()), static_cast<double>(now_us() - start));
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
        drafter_acceptance_.observe(n_accepted, n_offered);
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
