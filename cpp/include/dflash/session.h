// One text being written: a target, a speculator and a sampler, step by step.
//
//     session.begin(prompt, options);
//     while (session.prefill(512) > 0) {}
//     while (!session.finished()) { StepResult result = session.step(); ... }
//
// Invariant between calls: the target's KV cache holds the committed tokens but the last, which is the anchor.
// `begin` keeps the longest common prefix of the cached tokens and the new prompt. After any exception the
// session is usable: call `begin` again.
//
// One thread at a time; a second one gets BusyError. `target` must outlive the session.

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dflash/sampler.h"
#include "dflash/speculator.h"
#include "dflash/stats.h"
#include "dflash/target.h"
#include "dflash/text_stream.h"
#include "dflash/verify.h"

namespace dflash {

// How drafts are verified when tokens are drawn. Greedy knows one way only.
enum class Verification { coupled, rejection };

struct GenerationOptions {
    int max_tokens = 256;  // >= 1
    std::vector<std::string> stop;
    Verification verification = Verification::coupled;
    SamplerOptions sampler;
};

enum class FinishReason { none, stop, length };

const char * finish_reason_name(FinishReason reason);

struct StepResult {
    Tokens tokens;     // committed in this step; without the end-of-generation token
    std::string text;  // bytes that may be shown now: whole characters, no part of a stop string
    FinishReason finish_reason = FinishReason::none;
};

class Session {
public:
    // ngram and drafter may be null. Throws NgramMapError where the table belongs to another tokenizer,
    // std::invalid_argument on a bad option.
    Session(std::shared_ptr<Target> target, std::shared_ptr<NgramMap> ngram, std::shared_ptr<ModelDrafter> drafter,
            const SpeculatorOptions & options);

    ~Session();

    // Takes the cost model from a file in this folder where one is there for the same models, devices, threads and
    // build; writes it there once measured, and at the end what was learned since.
    void keep_costs(const std::string & folder);

    // Throws std::invalid_argument (an option, an empty prompt, an id out of range), ContextOverflowError.
    void begin(const Tokens & prompt, const GenerationOptions & options);
    // Reads up to max_tokens more of the prompt; returns how many remain.
    int prefill(int max_tokens);
    // One verification. Throws Interrupted, ModelError.
    StepResult step();
    bool finished() const { return finish_reason_ != FinishReason::none; }

    // Forgets the text; the table and the cost model stay.
    void reset();

    const Stats & stats() const { return stats_; }
    const Tokens & committed() const { return committed_; }
    const CostModel & cost_model() const { return speculator_.cost_model(); }

    // [vocab size] logits after `tokens`; the last n_single tokens are decoded one by one, as plain decoding
    // would, the others in batches. Replaces the session's text.
    std::vector<float> logits(const Tokens & tokens, int n_single);

private:
    class Entry;   // marks the session busy while a call is inside
    class Flight;  // ends a drafter's pass beside the target's with the step

    void calibrate();
    void save_costs() const;
    void rest();

    void keep_common_prefix(const Tokens & tokens, std::size_t limit);
    int room() const;
    bool by_rejection() const;
    void absorb(int n_rows);
    Verdict judge(const Draft & draft);
    StepResult commit(const Verdict & verdict);

    std::shared_ptr<Target> target_;
    Speculator speculator_;
    std::unique_ptr<Sampler> sampler_;
    TextStream text_;
    GenerationOptions options_;
    Tokens committed_;
    FinishReason finish_reason_ = FinishReason::stop;
    Stats stats_;
    std::int64_t began_us_ = 0;
    std::string cost_path_;  // empty: costs are not kept
    std::string cost_key_;
    std::atomic<bool> busy_{false};
};

}  // namespace dflash
