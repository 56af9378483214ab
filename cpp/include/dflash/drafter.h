// The drafter: a DFlash or DFlash 2 model on a llama.cpp context of its own that borrows the target's token
// embedding and output head.
//
// It reads the target's features (hidden states at its tap layers) instead of tokens: `absorb` injects those of
// committed rows into its KV cache; `lattice` then fills a block [anchor, MASK, ..., MASK] in one pass and
// returns the lattice. Invariant between calls: the cache holds the injected positions [0, n_past) and nothing
// of any draft.
//
// Shares the target, and its threadpool while the two take turns; beside the target's pass it has a pool of its
// own. A target has one drafter at a time. One thread at a time, whichever.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dflash/gguf_file.h"
#include "dflash/lattice.h"
#include "dflash/model_drafter.h"
#include "dflash/target.h"
#include "dflash/token.h"

struct llama_context;
struct llama_model;

namespace dflash {

struct DrafterOptions {
    int n_gpu_layers = -1;          // layers on the device; -1: all
    int n_threads = 0;              // 0: the target's threads, in the target's pool
    bool plan_only = false;         // as in TargetOptions
    std::string device;             // as find_device takes it; empty: as llama.cpp chooses
    llama_model * model = nullptr;  // loaded by somebody else from the same file, and outlives the drafter
};

class Drafter : public BlockDrafter {
public:
    static constexpr int max_blocks = 8;
    static constexpr int max_pending = 64;
    static constexpr int max_inject = 128;  // rows of features in one pass

    // Whether the file is a DFlash drafter (by its architecture). Throws ModelError on a file that is no GGUF.
    static bool is_drafter_file(const std::string & path);
    // Throws what the constructor would throw of a file that is no sound drafter or does not fit the target's file;
    // loads nothing.
    static void check(const std::string & path, const Target & target);

    // Turns feature extraction on in the target. Throws ModelError (the file, too little memory),
    // IncompatibleDrafterError (it does not fit this target; says what differs), std::invalid_argument (an option).
    Drafter(const std::string & path, std::shared_ptr<Target> target, const DrafterOptions & options);
    ~Drafter() override;

    // Takes the features of the first n_rows of the target's last pass, which began at position n_past(). They are
    // injected with the next draft, or when there are many: on steps that draft nothing they cost next to nothing.
    void absorb(int n_rows) override;
    void absorb_rows(const float * features, int n_rows) override;
    void skip_to(int n_tokens) override;
    // Floats of a row's features: the taps' hidden states, one after the other.
    int feature_width() const { return static_cast<int>(taps_.size()) * hidden_size_; }
    // Copies the features of the target's last pass, rows [first_row, first_row + n_rows).
    void read_features(int first_row, int n_rows, float * features) const;

    // One pass over [anchor, MASK x n_tokens] at position n_past(). n_tokens is cut to max_tokens().
    // Empty where the drafter computes no finite scores: then `broken` holds, a warning was logged, and every
    // later draft is empty too.
    Lattice lattice(Token anchor, int n_tokens);
    // The same for several anchors at that position, in one pass over blocks that share the injected context:
    // one lattice each, in order; none where the drafter is broken. At most max_blocks anchors.
    std::vector<Lattice> lattices(const Tokens & anchors, int n_tokens);
    // The same with revealed prefixes: blocks [anchor, x1 .. xr, MASK ...] of n_tokens + 1 rows. Of each lattice
    // only the positions after the prefix mean anything; walk it from r + 1 with xr as predecessor.
    std::vector<Lattice> revealed_lattices(const std::vector<Tokens> & prefixes, int n_tokens) override;

    // The same pass for whoever checks the drafter: final hidden states and logits of every block position.
    struct BlockStates {
        std::vector<std::vector<float>> hidden;  // [n_tokens + 1][hidden size]
        std::vector<std::vector<float>> logits;  // [n_tokens + 1][vocab size]
    };
    BlockStates block_states(Token anchor, int n_tokens);

    void truncate(int n_tokens) override;
    void cut_out(int from, int n_tokens) override;
    int n_past() const override { return n_past_ + n_pending_; }
    int max_tokens() const override { return block_size_ - 1; }
    // Beside the target's pass it computes in a threadpool of its own.
    void run_beside(bool beside) override;
    void rest() override;
    int threads_beside() const override { return on_cpu_ ? beside_pool_->n_threads() : 0; }
    // Every pass takes at least so many microseconds, the rest slept: a paced run.
    void set_pace(std::int64_t us) { pace_us_ = us; }
    // Called after each pass, on its thread, with the lattices; may throw, wait or spoil them: fault injection.
    void set_after_pass(std::function<void(std::vector<Lattice> &)> after_pass) {
        after_pass_ = std::move(after_pass);
    }
    int top_k() const { return top_k_; }
    bool has_selector() const { return has_selector_; }
    bool broken() const { return broken_; }
    const std::vector<int> & tap_layers() const { return taps_; }
    std::uint64_t model_bytes() const override;
    MemoryUse memory() const { return memory_use(context_.get()); }

private:
    struct Free {
        void operator()(llama_context * context) const;
    };

    void foresee_memory(const GgufFile & file, DrafterOptions options) const;
    void load(const GgufFile & file, const DrafterOptions & options);
    void create_context(const DrafterOptions & options);
    void compute_in(const Threadpool * pool);
    float * add_pending(int n_rows);
    void inject();
    void decode_blocks(const std::vector<Tokens> & prefixes, int n_tokens, bool with_logits);
    void forget_blocks();
    Lattice read_selector_lattice(Token anchor, int n_tokens, int first_row) const;
    Lattice read_logits_lattice(Token anchor, int n_tokens, int first_row) const;

    std::shared_ptr<Target> target_;
    std::shared_ptr<Threadpool> threadpool_;   // in turn with the target
    std::shared_ptr<Threadpool> beside_pool_;  // beside it
    std::shared_ptr<llama_model> model_;
    std::unique_ptr<llama_context, Free> context_;
    std::vector<int> taps_;       // target layers whose input is read
    std::vector<float> pending_;  // [n_pending_][taps * hidden size] features not injected yet
    int n_pending_ = 0;
    int hidden_size_ = 0;
    Token mask_ = -1;
    int block_size_ = 0;
    int top_k_ = 16;
    int n_past_ = 0;            // injected
    float logit_scale_ = 1.0f;  // version 1 only; version 2's graph applies them
    float softcap_ = 0.0f;      // 0: none
    bool has_selector_ = false;
    std::shared_ptr<const Codebooks> codebooks_;  // null: the lattice's rows have no room for the gate
    bool broken_ = false;
    bool on_cpu_ = true;  // as the target is: their passes share cores
    bool beside_ = false;
    std::int64_t pace_us_ = 0;
    std::function<void(std::vector<Lattice> &)> after_pass_;
};

}  // namespace dflash
