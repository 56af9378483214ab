// The teacher: the target as whoever trains a drafter for it needs it, with many sequences at once.
//
// `submit` and `step` write answers, each in a sequence of its own, all of them in one pass per token. `read`
// gives, for a finished text, what a drafter will see (features at tap layers) and what it should say (the
// target's likeliest next tokens).
//
// Uses all sequences of the target's context; the target must not be used for anything else meanwhile. One
// thread at a time.

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "dflash/sampler.h"
#include "dflash/target.h"
#include "dflash/token.h"

namespace dflash {

struct Answer {
    int id;         // as given to `submit`
    Tokens tokens;  // without the end-of-generation token
    bool ended;     // by an end-of-generation token
    bool looped;    // cut where loop_length tokens in a row began for the loop_times-th time
};

// What a text of n tokens teaches; m of them, the rows from first_row on, have predictions.
struct Lesson {
    std::vector<std::uint16_t> features;  // [n][taps][hidden size], bfloat16 bits: inputs of the tap layers
    Tokens top_tokens;                    // [m][k], likeliest successors of a row's token, best first
    std::vector<float> top_log_probs;     // [m][k], their natural-log probabilities at temperature 1
};

class Teacher {
public:
    static constexpr int loop_length = 8;
    static constexpr int loop_times = 3;

    // tap_layers: target layers whose input is read; turned on in the target.
    // Throws as Target::enable_features does.
    Teacher(std::shared_ptr<Target> target, std::vector<int> tap_layers);
    ~Teacher();

    int n_free() const { return static_cast<int>(free_.size()); }
    int n_active() const { return static_cast<int>(active_.size()); }

    // Reads a prompt into a free sequence. Throws std::invalid_argument where none is free or the prompt leaves
    // no room for max_tokens.
    void submit(int id, const Tokens & prompt, const SamplerOptions & sampling, int max_tokens);
    // One token for every active sequence; returns the answers that ended with it.
    std::vector<Answer> step();

    // Throws std::invalid_argument while answers are being written, or on a text longer than the context.
    Lesson read(const Tokens & text, int top_k, int first_row = 0);

private:
    struct Active {
        int id;
        int sequence;
        int n_past;
        int max_tokens;
        Token next;  // chosen, not yet seen by the target
        Tokens answer;
        std::unique_ptr<Sampler> sampler;
        std::map<Tokens, int> seen;  // how often each run of loop_length tokens began
    };

    void decode(const Tokens & tokens, const std::vector<int> & positions, std::vector<int> & sequences,
                const std::vector<std::int8_t> & outputs);

    std::shared_ptr<Target> target_;
    std::vector<int> tap_layers_;
    int n_embd_;
    std::vector<Active> active_;
    std::vector<int> free_;
};

}  // namespace dflash
