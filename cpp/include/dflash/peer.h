// The peer: llama.cpp's own speculative decoding at the pin (`common_speculative`), to be measured beside ours on the
// same weights. Greedy; the loop and the sampler are those of a user of its command-line programs.
//
// It shares the target's model and takes its context size, threads and KV types, but has contexts of its own. Its
// threads do not poll: with llama.cpp's default they spin on the cores that its draft model needs, and where both run
// on the CPU it loses most of its speed (`--poll 0` of its programs). One thread at a time. The target must not run
// meanwhile.

#pragma once

#include <functional>
#include <memory>
#include <string>

#include "dflash/stats.h"
#include "dflash/target.h"
#include "dflash/token.h"

namespace dflash {

struct PeerOptions {
    std::string types;                // llama.cpp's names, with commas: "draft-dflash,ngram-map-k4v"; "none" is plain
    std::string drafter;              // path of the draft model; empty where no type needs one
    int width = 0;                    // tokens asked of a draft model (--spec-draft-n-max); 0: llama.cpp's default
    int n_gpu_layers = -1;            // of the draft model; -1: all
    std::function<bool()> interrupt;  // asked between graph nodes; true ends the generation with Interrupted
};

class Peer {
public:
    // Throws std::invalid_argument (a type or the width), ModelError (a file), IncompatibleDrafterError (the drafter,
    // or draft-mtp on a target without such layers).
    Peer(std::shared_ptr<Target> target, const PeerOptions & options);
    ~Peer();

    // Returns the tokens that follow the prompt, the end-of-generation token excluded; at most max_tokens. `grammar`:
    // GBNF, may be empty. Throws std::invalid_argument (an option, an empty prompt, an id out of range, the grammar),
    // ContextOverflowError, ModelError, Interrupted; afterwards it may be called again.
    Tokens generate(const Tokens & prompt, int max_tokens, const std::string & grammar);
    // Starts the speculation anew: what it learned of earlier texts is forgotten.
    void reset();
    // Of the last generation. llama.cpp does not say which of several types made a draft: all count as the table's
    // where every type is an n-gram type, else as the drafter's.
    const Stats & stats() const { return stats_; }
    // What the target's second context and the draft model take.
    MemoryUse memory() const;

private:
    struct Llama;  // llama.cpp's objects

    std::shared_ptr<Target> target_;
    std::unique_ptr<Llama> llama_;
    Stats stats_;
};

}  // namespace dflash
