// The target: the language model whose text is wanted, on one llama.cpp context with one sequence.
//
// Invariant: the KV cache holds exactly the tokens [0, n_past). `prefill` and `verify` append, `truncate`
// removes. Logits stay valid until the next call that appends.
//
// Owns model, context and batch; shares the threadpool. One thread at a time, whichever.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dflash/memory.h"
#include "dflash/threadpool.h"
#include "dflash/token.h"
#include "dflash/vocab.h"

struct llama_context;
struct llama_context_params;
struct llama_model;

namespace dflash {

class GgufFile;

// Whether a model's layers compute on this machine's CPU: not on a GPU, not on another machine.
bool computes_on_cpu(const llama_model & model, int n_gpu_layers);

struct TargetOptions {
    int n_ctx = 4096;            // tokens the context holds; 0: as many as the model was trained for
    int n_gpu_layers = -1;       // layers on the GPU; -1: all
    int n_threads = 0;           // CPU threads; 0: default_threads()
    int n_batch = 512;           // tokens per prefill pass
    std::string type_k = "f16";  // KV cache types: f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0, iq4_nl
    std::string type_v = "f16";
    std::string flash_attention = "auto";  // auto, on, off
    std::function<bool(float)> progress;   // 0..1 while loading; false gives up. May be empty
    bool plan_only = false;  // read the header and add up what would be allocated; the model cannot run then
    // Sequences that the context has room for, n_ctx tokens each. More than one is a Teacher's affair; this class
    // works on sequence 0.
    int n_sequences = 1;
    bool all_logits = false;                 // room for the logits of a whole batch; otherwise of max_rows
    std::shared_ptr<Threadpool> threadpool;  // of a context that takes turns with this one; null: a new one
};

class Target {
public:
    static constexpr int max_rows = 64;  // rows of one verification

    // Throws ModelError (the file, too little memory, or llama.cpp's reason), std::invalid_argument (an option),
    // Interrupted.
    Target(const std::string & path, const TargetOptions & options);
    // A view of a context that somebody else owns, outlives it and runs, for drafters to attach to; nothing is decoded
    // through it. path: the model's file, for its header; of the options, types, flash attention and threadpool (the
    // context's, or null) count.
    Target(llama_context * context, const std::string & path, const TargetOptions & options);
    ~Target();

    // Appends tokens[0..n) without logits, n <= n_batch.
    void prefill(const Token * tokens, int n);
    // Appends the anchor and its draft, n <= max_rows; afterwards row(i) is the prediction after tokens[i].
    void verify(const Token * tokens, int n);
    // [vocab size] logits of row i of the last verification.
    const float * row(int i) const;

    // Median microseconds of a verification of n_rows after the present text, which stays as it is; with n_spared
    // threads left to somebody else.
    double measure_us(int n_rows, int n_repetitions, int n_spared = 0);

    // The text is finished: idle threads stop spinning on cores that somebody else may need.
    void rest();

    // CPU threads that the next passes leave to a drafter beside them; one at least remains. Where the model
    // computes elsewhere it makes no difference.
    void spare_threads(int n_threads);
    // Every verification takes at least so many microseconds, the rest slept: a paced run.
    void set_pace(std::int64_t us) { pace_us_ = us; }
    // Whether all layers compute on this machine's CPU.
    bool on_cpu() const;

    // Removes everything from position n_tokens on. False where this model's state cannot be cut there
    // (recurrent layers): then the cache is empty and must be filled again.
    bool truncate(int n_tokens);

    int n_past() const { return n_past_; }
    int n_ctx() const { return n_ctx_; }
    int n_batch() const { return options_.n_batch; }
    bool gives_all_logits() const { return options_.all_logits; }
    // Draft tokens that can be taken back after a verification; 0 where none can.
    int max_draft() const { return max_draft_; }

    // Keeps, from now on, the inputs of these layers for every row of a pass, for a drafter to read. Several drafters
    // may ask for the same layers. Throws std::invalid_argument where a layer is out of range or a drafter is attached
    // that asked for others, or for a target of our own; IncompatibleDrafterError where this architecture gives none.
    void enable_features(const std::vector<int> & layers);
    void disable_features();
    static bool gives_features(const std::string & architecture);

    // Asked between graph nodes, on the calling thread; true makes the pass throw Interrupted. On a GPU a
    // pass runs to its end first.
    void set_interrupt(std::function<bool()> interrupt) { interrupt_ = std::move(interrupt); }

    Vocab vocab() const;
    std::uint64_t tokenizer() const { return tokenizer_; }
    const std::string & path() const { return path_; }
    std::string description() const;
    // All that the time of a pass depends on, but the machine's load: model, devices, threads, KV cache.
    std::string identity() const;
    std::string chat_template() const;  // empty where the model has none
    std::string metadata(const std::string & key) const;
    std::uint64_t model_bytes() const;
    MemoryUse memory() const { return memory_use(context_.get()); }
    int n_ctx_train() const;
    int n_threads() const;
    // Null for a view: its owner's threads are its owner's.
    const std::shared_ptr<Threadpool> & threadpool() const { return threadpool_; }
    // Fills in what a context of the same kind shares with this one: KV types and flash attention.
    void share_settings(llama_context_params & params) const;
    llama_context * raw() const { return context_.get(); }

private:
    void foresee_memory(const GgufFile & file) const;
    void load(const std::string & path);
    void create_context();
    void append(const Token * tokens, int n, bool with_logits);

    std::string path_;
    TargetOptions options_;
    std::shared_ptr<Threadpool> threadpool_;
    std::shared_ptr<llama_model> model_;      // not freed for a view
    std::shared_ptr<llama_context> context_;  // as that
    std::function<bool()> interrupt_;
    std::uint64_t tokenizer_ = 0;
    int n_ctx_ = 0;
    int n_past_ = 0;
    int max_draft_ = 0;
    int n_threads_ = 0;
    int n_threads_batch_ = 0;  // of passes of more than one row, where the context's owner tells them apart
    bool is_view_ = false;
    std::int64_t pace_us_ = 0;
    std::vector<int> feature_layers_;
    int n_feature_users_ = 0;
};

}  // namespace dflash
