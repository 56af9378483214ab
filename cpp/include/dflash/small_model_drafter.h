// Classic speculative decoding: a small language model of the same vocabulary drafts token by token.
//
// It keeps its own KV cache of the text and brings it up to date before it drafts. One thread at a time. Shares
// the target's threadpool where it runs on as many threads: the two take turns.

#pragma once

#include <memory>
#include <string>

#include "dflash/model_drafter.h"
#include "dflash/target.h"

namespace dflash {

class SmallModelDrafter : public TokenDrafter {
public:
    // Throws ModelError (the file), IncompatibleDrafterError (another tokenizer), std::invalid_argument.
    SmallModelDrafter(const std::string & path, const Target & target, const TargetOptions & options);

    Path draft(const Tokens & committed, int n_tokens, const SamplerOptions & sampling, bool with_q) override;
    void absorb(int) override {}
    void truncate(int n_tokens) override;
    void rest() override { model_.rest(); }
    std::uint64_t model_bytes() const override { return model_.model_bytes(); }

    // As Target::measure_us, of the small model.
    double measure_us(int n_rows, int n_repetitions) { return model_.measure_us(n_rows, n_repetitions); }

private:
    void follow(const Tokens & committed);

    Target model_;
    Tokens cached_;  // what the model's KV cache holds
};

}  // namespace dflash
