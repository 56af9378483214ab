#include "dflash/small_model_drafter.h"

#include <algorithm>

#include "dflash/error.h"

namespace dflash {

SmallModelDrafter::SmallModelDrafter(const std::string & path, const Target & target, const TargetOptions & options)
    : model_(path, options) {
    if (model_.tokenizer() != target.tokenizer()) {
        throw IncompatibleDrafterError(path + " does not fit this target: its tokenizer has other tokens");
    }
}

void SmallModelDrafter::truncate(int n_tokens) {
    model_.truncate(n_tokens);
    cached_.resize(std::min(cached_.size(), static_cast<std::size_t>(model_.n_past())));
}

// Afterwards the cache holds the committed text but its last token.
void SmallModelDrafter::follow(const Tokens & committed) {
    const auto differs = std::mismatch(cached_.begin(), cached_.end(), committed.begin(), committed.end() - 1);
    truncate(static_cast<int>(differs.first - cached_.begin()));
    const int wanted = static_cast<int>(committed.size()) - 1;
    while (model_.n_past() < wanted) {
        const int n = std::min(model_.n_batch(), wanted - model_.n_past());
        model_.prefill(committed.data() + model_.n_past(), n);
    }
    cached_.assign(committed.begin(), committed.end() - 1);
}

Path SmallModelDrafter::draft(const Tokens & committed, int n_tokens, const SamplerOptions & sampling, bool with_q) {
    Path draft;
    const int room = model_.n_ctx() - static_cast<int>(committed.size());
    const int wanted = std::min(n_tokens, room);
    if (wanted < 1) {
        return draft;
    }
    follow(committed);
    // Penalties and grammar look at accepted text; a draft is a guess at it and does without them.
    SamplerOptions options = sampling;
    options.repeat_penalty = 1.0f;
    options.frequency_penalty = options.presence_penalty = 0.0f;
    options.grammar.clear();
    Sampler sampler(model_.vocab(), options);
    Token last = committed.back();
    for (int i = 0; i < wanted; ++i) {
        model_.verify(&last, 1);
        cached_.push_back(last);
        last = sampler.sample(model_.row(0), static_cast<std::int64_t>(committed.size()) + i);
        if (with_q) {
            draft.q.push_back(sampler.distribution(model_.row(0)));
        }
        draft.tokens.push_back(last);
        if (model_.vocab().is_end(last)) {
            break;
        }
    }
    return draft;
}

}  // namespace dflash
