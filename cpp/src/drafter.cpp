#include "dflash/drafter.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <stdexcept>

#include "dflash/device.h"
#include "dflash/error.h"
#include "dflash/gguf_file.h"
#include "dflash/log.h"
#include "dflash/stats.h"
#include "llama-ext.h"
#include "llama-model.h"
#include "llama.h"

namespace dflash {
namespace {

std::vector<int> integer_array(const GgufFile & file, const std::string & key) {
    std::vector<int> result;
    const auto found = file.metadata().find(key);
    const auto * array = found == file.metadata().end() ? nullptr : std::get_if<GgufArray>(&found->second);
    if (array) {
        for (const auto & value : array->values) {
            if (const auto * number = std::get_if<std::int64_t>(&value)) {
                result.push_back(static_cast<int>(*number));
            }
        }
    }
    return result;
}

bool has_tensor(const GgufFile & file, const std::string & name) {
    return std::any_of(file.tensors().begin(), file.tensors().end(),
                       [&name](const GgufTensor & tensor) { return tensor.name == name; });
}

[[noreturn]] void mismatch(const std::string & path, const std::string & what) {
    throw IncompatibleDrafterError(path + " does not fit this target: " + what);
}

std::string differs(const std::string & name, std::int64_t drafter, std::int64_t target) {
    return name + " is " + std::to_string(drafter) + ", the target's " + std::to_string(target);
}

// What llama.cpp would assert on, and what would only show as drafts that are never accepted.
void check_fits(const GgufFile & file, const Target & target, const std::vector<int> & taps) {
    const std::string & path = file.path();
    const GgufFile target_file(target.path());
    if (!Target::gives_features(target_file.architecture())) {
        mismatch(path, "targets of architecture " + target_file.architecture() + " give no features");
    }
    const std::int64_t hidden = file.arch_integer("embedding_length");
    const std::int64_t target_hidden = target_file.arch_integer("embedding_length");
    if (hidden != target_hidden) {
        mismatch(path, differs("its hidden size", hidden, target_hidden));
    }
    if (file.vocab_size() != target_file.vocab_size()) {
        mismatch(path,
                 differs("its vocabulary", std::int64_t(file.vocab_size()), std::int64_t(target_file.vocab_size())));
    }
    const char * const tokenizer = "tokenizer.ggml.model";
    if (file.text(tokenizer) != target_file.text(tokenizer)) {
        mismatch(path, "its tokenizer is of type '" + file.text(tokenizer) + "', the target's '" +
                           target_file.text(tokenizer) + "'");
    }
    if (taps.empty()) {
        throw ModelError(path + " names no tap layers (dflash.target_layers); convert it again");
    }
    const std::int64_t n_layer = target_file.arch_integer("block_count");
    for (const int tap : taps) {
        if (tap < 0 || tap >= n_layer) {
            mismatch(path, "it taps the input of layer " + std::to_string(tap) + ", the target has layers 0 to " +
                               std::to_string(n_layer - 1));
        }
    }
}

void check_sound(const GgufFile & file) {
    const std::string & path = file.path();
    const auto damaged = [&path](const std::string & what) {
        throw ModelError(path + " is no usable drafter: " + what + "; convert it again");
    };
    file.require_sane_sizes();
    const std::int64_t block = file.arch_integer("block_size", 16);
    if (block < 2 || block > 4096) {
        damaged("its block size is " + std::to_string(block));
    }
    const std::int64_t mask = file.integer("tokenizer.ggml.mask_token_id", -1);
    if (mask < 0 || mask >= std::int64_t(file.vocab_size())) {
        damaged("it has no mask token (tokenizer.ggml.mask_token_id)");
    }
    const bool has_selector = has_tensor(file, "selector_hidden.weight");
    const std::int64_t k = file.arch_integer("selector_top_k");
    if (has_selector) {
        for (const char * key : {"conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"}) {
            if (file.arch_integer(key) < 1) {
                damaged(std::string("it has selector tensors without dflash.") + key);
            }
        }
        if (k * (k + 1) > file.arch_integer("embedding_length")) {
            damaged("its selector keeps " + std::to_string(k) + " candidates, too many for its hidden size (" +
                    std::to_string(file.arch_integer("embedding_length")) + " >= k (k + 1) is needed)");
        }
        if (file.arch_integer("embedding_length") % file.arch_integer("conv_group_size") != 0) {
            damaged("its convolution groups do not divide its hidden size");
        }
    }
    const std::int64_t heads = file.arch_integer("attention.head_count");
    if (heads < 1 || file.arch_integer("attention.head_count_kv", heads) < 1 ||
        file.arch_integer("block_count") < 1) {
        damaged("its head or layer counts are impossible");
    }
    if (file.arch_integer("rope.dimension_count", 2) < 2) {
        damaged("it rotates no dimension");
    }
    if (file.arch_integer("attention.key_length") != file.arch_integer("attention.value_length")) {
        damaged("its keys and values differ in size");
    }
    for (const GgufTensor & tensor : file.tensors()) {
        if (tensor.name == "d2t" && tensor.type != "I64") {
            damaged("its map of draft tokens (d2t) is of type " + tensor.type);
        }
    }
    if (file.arch_integer("hyper_connection.count") != 0) {
        throw ModelError(path + " is a DSpark drafter; this build drafts with DFlash and DFlash 2");
    }
}

// The drafter's tap layers, once the file is found sound and fitting.
std::vector<int> checked_taps(const GgufFile & file, const Target & target) {
    if (file.architecture() != "dflash") {
        throw ModelError(file.path() + " is no DFlash drafter (architecture " + file.architecture() + ")");
    }
    check_sound(file);
    std::vector<int> taps = integer_array(file, "dflash.target_layers");
    check_fits(file, target, taps);
    return taps;
}

// Rows of the drafter's own tensors, wherever they live. Keeps the model alive.
class ModelCodebooks : public Codebooks {
public:
    ModelCodebooks(std::shared_ptr<llama_model> model, int rank) : model_(std::move(model)), rank_(rank) {}

    int rank() const override { return rank_; }
    std::vector<float> predecessor(Token token) const override { return row(model_->dflash_selector_prev, token); }
    std::vector<float> successor(Token token) const override { return row(model_->dflash_selector_next, token); }

private:
    std::vector<float> row(const ggml_tensor * codebook, Token token) const {
        const std::size_t size = ggml_row_size(codebook->type, rank_);
        std::vector<std::uint8_t> raw(size);
        ggml_backend_tensor_get(codebook, raw.data(), static_cast<std::size_t>(token) * codebook->nb[1], size);
        std::vector<float> values(static_cast<std::size_t>(rank_));
        if (codebook->type == GGML_TYPE_F32) {
            std::memcpy(values.data(), raw.data(), size);
        } else {
            ggml_get_type_traits(codebook->type)->to_float(raw.data(), values.data(), rank_);
        }
        return values;
    }

    std::shared_ptr<llama_model> model_;
    int rank_;
};

std::string because(const std::string & reason) { return reason.empty() ? "" : ": " + reason; }

}  // namespace

void Drafter::Free::operator()(llama_context * context) const { llama_free(context); }

bool Drafter::is_drafter_file(const std::string & path) { return GgufFile(path).architecture() == "dflash"; }

void Drafter::check(const std::string & path, const Target & target) { checked_taps(GgufFile(path), target); }

Drafter::Drafter(const std::string & path, std::shared_ptr<Target> target, const DrafterOptions & options)
    : target_(std::move(target)) {
    init_backend();
    if (options.n_threads < 0 || options.n_threads > 512) {
        throw std::invalid_argument("drafter_threads is " + std::to_string(options.n_threads) + "; use 1 to 512");
    }
    const GgufFile file(path);
    taps_ = checked_taps(file, *target_);
    foresee_memory(file, options);
    load(file, options);
    create_context(options);
    target_->enable_features(taps_);
}

Drafter::~Drafter() { target_->disable_features(); }

void Drafter::foresee_memory(const GgufFile & file, DrafterOptions options) const {
    const auto n_ctx = static_cast<std::uint64_t>(target_->n_ctx());
    if (!options.plan_only && !options.model && may_run_short(file, n_ctx)) {
        options.plan_only = true;
        options.n_threads = 0;  // no threads of its own
        const Drafter planned(file.path(), target_, options);
        require_room(planned.context_.get(), "the drafter " + file.path(), false);
    }
}

void Drafter::load(const GgufFile & file, const DrafterOptions & options) {
    const std::string & path = file.path();
    llama_model_params params = llama_model_default_params();
    params.n_gpu_layers = options.n_gpu_layers;
    // Mapped, a small file stays in memory beside the copy of it that the CPU's kernels repack.
    params.load_mode = LLAMA_LOAD_MODE_NONE;
    params.no_alloc = options.plan_only;
    ggml_backend_dev_t devices[2] = {nullptr, nullptr};
    if (!options.device.empty()) {
        devices[0] = find_device(options.device);
        params.devices = devices;
    }
    take_errors();
    if (options.model) {
        model_ = std::shared_ptr<llama_model>(options.model, [](llama_model *) {});
    } else {
        model_.reset(llama_model_load_from_file(path.c_str(), params),
                     [](llama_model * model) { llama_model_free(model); });
    }
    if (!model_) {
        throw ModelError("llama.cpp cannot load the drafter " + path + because(take_errors()));
    }
    const Vocab vocab(llama_model_get_vocab(model_.get()));
    if (vocab.fingerprint() != target_->tokenizer()) {
        mismatch(path, "its tokenizer has other tokens");
    }
    mask_ = llama_vocab_mask(vocab.raw());
    hidden_size_ = llama_model_n_embd(model_.get());
    block_size_ = static_cast<int>(file.arch_integer("block_size", 16));
    logit_scale_ = static_cast<float>(file.real("dflash.logit_scale", 1.0));
    softcap_ = static_cast<float>(file.real("dflash.final_logit_softcapping", 0.0));
    const int selector_top_k = llama_model_dflash_selector_top_k(model_.get());
    has_selector_ = selector_top_k > 0;
    top_k_ = has_selector_ ? selector_top_k : std::min(16, vocab.size());
    const int rank = static_cast<int>(file.arch_integer("selector_rank"));
    if (has_selector_ && !options.plan_only && top_k_ * (top_k_ + 2) + rank <= llama_model_n_embd(model_.get())) {
        codebooks_ = std::make_shared<ModelCodebooks>(model_, rank);
    }
}

void Drafter::create_context(const DrafterOptions & options) {
    llama_context_params params = llama_context_default_params();
    // A block may stand at the very end of the target's context.
    const int block_rows = max_blocks * block_size_;
    params.n_ctx = static_cast<std::uint32_t>(target_->n_ctx() + block_rows);
    // Its buffers are as large as its largest pass (and it may not be split, attention within a block going both ways):
    // features are injected in pieces.
    params.n_batch = params.n_ubatch = static_cast<std::uint32_t>(std::max(max_inject, block_rows));
    params.n_seq_max = max_blocks;
    params.kv_unified = true;  // blocks share the cells of the injected context
    params.n_outputs_max = static_cast<std::uint32_t>(block_rows);
    params.swa_full = true;
    target_->share_settings(params);
    params.no_perf = true;
    params.ctx_other = target_->raw();
    threadpool_ = options.n_threads > 0 ? std::make_shared<Threadpool>(options.n_threads) : target_->threadpool();
    take_errors();
    context_.reset(llama_init_from_model(model_.get(), params));
    if (!context_) {
        throw ModelError("llama.cpp cannot make a context for the drafter" + because(take_errors()));
    }
    compute_in(threadpool_.get());
    on_cpu_ = computes_on_cpu(*model_, options.n_gpu_layers) && target_->on_cpu();
    // A drafter is small: a quarter of the cores. Where only one of the two needs cores, or it has its own, it may
    // take them all, but for the one that the target's thread keeps.
    const int beside = on_cpu_ ? target_->n_threads() / 4 : target_->n_threads() - 1;
    beside_pool_ = options.n_threads > 0 ? threadpool_ : std::make_shared<Threadpool>(std::max(1, beside));
    // The selector's lattice comes back through the "nextn" embeddings, a row for every token of the batch.
    llama_set_embeddings_nextn(context_.get(), has_selector_, false);
    char causal[16] = {};
    llama_model_meta_val_str(model_.get(), "dflash.attention.causal", causal, sizeof(causal));
    llama_set_causal_attn(context_.get(), std::strcmp(causal, "true") == 0);
}

void Drafter::run_beside(bool beside) {
    if (beside != beside_) {
        beside_ = beside;
        compute_in((beside ? beside_pool_ : threadpool_).get());
    }
}

void Drafter::rest() {
    for (Threadpool * pool : {threadpool_.get(), beside_pool_.get()}) {
        if (pool) {
            pool->rest();
        }
    }
}

// Null: in threads that llama.cpp makes for each pass, as many as a view's target has.
void Drafter::compute_in(const Threadpool * pool) {
    const int n_threads = pool ? pool->n_threads() : target_->n_threads();
    llama_detach_threadpool(context_.get());
    if (pool) {
        llama_attach_threadpool(context_.get(), pool->raw(), pool->raw());
    }
    llama_set_n_threads(context_.get(), n_threads, n_threads);
}

void Drafter::read_features(int first_row, int n_rows, float * features) const {
    const auto hidden = static_cast<std::size_t>(hidden_size_);
    const auto width = static_cast<std::size_t>(feature_width());
    for (std::size_t k = 0; k < taps_.size(); ++k) {
        const float * layer = llama_get_embeddings_layer_inp(target_->raw(), static_cast<std::uint32_t>(taps_[k]));
        for (std::size_t i = 0; i < static_cast<std::size_t>(n_rows); ++i) {
            std::memcpy(features + i * width + k * hidden, layer + (static_cast<std::size_t>(first_row) + i) * hidden,
                        sizeof(float) * hidden);
        }
    }
}

// Room for the features of n_rows more, behind those that wait.
float * Drafter::add_pending(int n_rows) {
    const auto width = static_cast<std::size_t>(feature_width());
    pending_.resize(static_cast<std::size_t>(n_pending_ + n_rows) * width);
    float * added = &pending_[static_cast<std::size_t>(n_pending_) * width];
    n_pending_ += n_rows;
    return added;
}

void Drafter::absorb(int n_rows) {
    read_features(0, n_rows, add_pending(n_rows));
    if (n_pending_ >= max_pending) {
        inject();
    }
}

void Drafter::absorb_rows(const float * features, int n_rows) {
    std::copy_n(features, static_cast<std::size_t>(n_rows) * static_cast<std::size_t>(feature_width()),
                add_pending(n_rows));
    if (n_pending_ >= max_pending) {
        inject();
    }
}

void Drafter::skip_to(int n_tokens) {
    if (n_tokens > n_past()) {
        inject();
        n_past_ = n_tokens;
    }
}

// Writes the pending features into the KV cache.
void Drafter::inject() {
    if (n_pending_ == 0) {
        return;
    }
    const auto width = static_cast<std::size_t>(feature_width());
    const auto n_batch = static_cast<int>(llama_n_batch(context_.get()));
    for (int begin = 0; begin < n_pending_; begin += n_batch) {
        const int n = std::min(n_batch, n_pending_ - begin);
        std::unique_ptr<llama_batch_ext, void (*)(llama_batch_ext *)> batch(llama_batch_ext_init(context_.get()),
                                                                            llama_batch_ext_free);
        for (int i = 0; i < n; ++i) {
            const llama_embd row{&pending_[static_cast<std::size_t>(begin + i) * width], 1, width};
            const std::int32_t index = llama_batch_ext_add_embd(batch.get(), 0, row);
            const llama_pos p = n_past_ + begin + i;
            const llama_pos positions[4] = {p, p, p, 0};  // an M-RoPE drafter reads four
            if (index < 0 || !llama_batch_ext_set_pos(batch.get(), index, positions)) {
                throw Error("llama.cpp refuses the drafter's features");
            }
        }
        take_errors();
        if (llama_process(context_.get(), LLAMA_PROCESS_TYPE_DECODE, batch.get()) != 0) {
            forget_blocks();
            throw ModelError("llama.cpp failed to inject features into the drafter" + because(take_errors()));
        }
    }
    llama_synchronize(context_.get());
    n_past_ += n_pending_;
    n_pending_ = 0;
}

// One pass over a block of n_tokens + 1 rows for each prefix, the rest of it masked; their KV stays until
// forget_blocks. Block i is sequence i; the others see the injected context through cells shared with sequence 0.
void Drafter::decode_blocks(const std::vector<Tokens> & prefixes, int n_tokens, bool with_logits) {
    inject();
    llama_memory_t memory = llama_get_memory(context_.get());
    const std::size_t rows = static_cast<std::size_t>(n_tokens) + 1;
    const std::size_t total = rows * prefixes.size();
    std::vector<Token> tokens(total, mask_);
    std::vector<llama_pos> positions(total);
    std::vector<std::int32_t> n_seqs(total, 1);
    std::vector<llama_seq_id> ids(prefixes.size());
    std::iota(ids.begin(), ids.end(), 0);
    std::vector<llama_seq_id *> sequences(total);
    for (std::size_t i = 0; i < prefixes.size(); ++i) {
        std::copy(prefixes[i].begin(), prefixes[i].end(), tokens.begin() + static_cast<std::ptrdiff_t>(i * rows));
        if (i > 0) {
            llama_memory_seq_cp(memory, 0, ids[i], 0, n_past_);
        }
        for (std::size_t j = 0; j < rows; ++j) {
            positions[i * rows + j] = n_past_ + static_cast<llama_pos>(j);
            sequences[i * rows + j] = &ids[i];
        }
    }
    std::vector<std::int8_t> outputs(total, with_logits);
    const llama_batch batch{static_cast<std::int32_t>(total),
                            tokens.data(),
                            nullptr,
                            positions.data(),
                            n_seqs.data(),
                            sequences.data(),
                            outputs.data()};
    take_errors();
    if (llama_decode(context_.get(), batch) != 0) {
        forget_blocks();
        throw ModelError("llama.cpp failed to draft" + because(take_errors()));
    }
    llama_synchronize(context_.get());
}

void Drafter::forget_blocks() {
    llama_memory_t memory = llama_get_memory(context_.get());
    for (llama_seq_id id = 1; id < max_blocks; ++id) {
        llama_memory_seq_rm(memory, id, -1, -1);
    }
    llama_memory_seq_rm(memory, 0, n_past_, -1);
}

Lattice Drafter::lattice(Token anchor, int n_tokens) {
    std::vector<Lattice> drafted = lattices({anchor}, n_tokens);
    return drafted.empty() ? Lattice() : std::move(drafted.front());
}

std::vector<Lattice> Drafter::lattices(const Tokens & anchors, int n_tokens) {
    std::vector<Tokens> prefixes;
    for (const Token anchor : anchors) {
        prefixes.push_back({anchor});
    }
    return revealed_lattices(prefixes, n_tokens);
}

std::vector<Lattice> Drafter::revealed_lattices(const std::vector<Tokens> & prefixes, int n_tokens) {
    if (prefixes.size() > max_blocks) {
        throw std::invalid_argument(std::to_string(prefixes.size()) + " blocks in a pass; use at most " +
                                    std::to_string(max_blocks));
    }
    const int n = std::min(n_tokens, max_tokens());
    for (const Tokens & prefix : prefixes) {
        target_->vocab().check(prefix);
        if (prefix.empty() || static_cast<int>(prefix.size()) > std::max(n, 1)) {
            throw std::invalid_argument("a prefix of " + std::to_string(prefix.size()) + " tokens in a block of " +
                                        std::to_string(n + 1) + " rows; reveal an anchor and leave a mask");
        }
    }
    if (n < 1 || prefixes.empty() || broken_) {
        return {};
    }
    const std::int64_t start = now_us();
    decode_blocks(prefixes, n, !has_selector_);
    std::vector<Lattice> drafted;
    for (std::size_t i = 0; i < prefixes.size(); ++i) {
        const int first_row = static_cast<int>(i) * (n + 1);
        drafted.push_back(has_selector_ ? read_selector_lattice(prefixes[i].front(), n, first_row)
                                        : read_logits_lattice(prefixes[i].front(), n, first_row));
    }
    forget_blocks();
    sleep_until_us(start + pace_us_);
    if (after_pass_) {
        after_pass_(drafted);
    }
    if (!std::all_of(drafted.begin(), drafted.end(), [](const Lattice & lattice) { return lattice.finite(); })) {
        broken_ = true;
        log(LogLevel::warn, "the drafter computes no finite scores (damaged weights?); going on without it");
        return {};
    }
    return drafted;
}

Drafter::BlockStates Drafter::block_states(Token anchor, int n_tokens) {
    const int n = std::min(n_tokens, max_tokens());
    const auto n_embd = llama_model_n_embd(model_.get());
    const auto n_vocab = target_->vocab().size();
    llama_set_embeddings(context_.get(), true);
    decode_blocks({{anchor}}, n, true);
    BlockStates states;
    for (int i = 0; i <= n; ++i) {
        const float * hidden = llama_get_embeddings_ith(context_.get(), i);
        const float * logits = llama_get_logits_ith(context_.get(), i);
        states.hidden.emplace_back(hidden, hidden + n_embd);
        states.logits.emplace_back(logits, logits + n_vocab);
    }
    forget_blocks();
    llama_set_embeddings(context_.get(), false);
    return states;
}

// Row i of the nextn embeddings: K candidate ids as floats, then K x K scores, predecessor-major; where there is
// room (patch 0003) the K unary scores and the gate. Position 0 is empty; position 1 repeats its one row (the
// anchor's) K times.
Lattice Drafter::read_selector_lattice(Token anchor, int n_tokens, int first_row) const {
    const float * rows = llama_get_embeddings_nextn(context_.get());
    const auto n_embd = static_cast<std::size_t>(llama_model_n_embd(model_.get()));
    const auto k = static_cast<std::size_t>(top_k_);
    Lattice lattice(anchor, top_k_, codebooks_);
    for (int position = 1; position <= n_tokens; ++position) {
        const float * row = rows + static_cast<std::size_t>(first_row + position) * n_embd;
        std::vector<Token> candidates(k);
        for (std::size_t i = 0; i < k; ++i) {
            candidates[i] = static_cast<Token>(row[i]);
        }
        const std::size_t n_scores = position == 1 ? k : k * k;
        const float * unary = row + k + k * k;
        std::vector<float> unaries, gate;
        if (codebooks_) {
            unaries.assign(unary, unary + k);
            gate.assign(unary + k, unary + k + codebooks_->rank());
        }
        lattice.add_position(std::move(candidates), std::vector<float>(row + k, row + k + n_scores),
                             std::move(unaries), std::move(gate));
    }
    return lattice;
}

// DFlash 1: the top K of the logits; every predecessor's row is the same. llama.cpp's graph leaves the output
// multiplier and the soft cap to the reader.
Lattice Drafter::read_logits_lattice(Token anchor, int n_tokens, int first_row) const {
    const int n_vocab = target_->vocab().size();
    const auto k = static_cast<std::size_t>(top_k_);
    Lattice lattice(anchor, top_k_);
    std::vector<Token> order(static_cast<std::size_t>(n_vocab));
    for (int position = 1; position <= n_tokens; ++position) {
        const float * logits = llama_get_logits_ith(context_.get(), first_row + position);
        std::iota(order.begin(), order.end(), 0);
        const auto better = [logits](Token a, Token b) {
            return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
        };
        std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(k), order.end(), better);
        std::vector<float> scores;
        for (std::size_t predecessor = 0; predecessor < (position == 1 ? 1 : k); ++predecessor) {
            for (std::size_t i = 0; i < k; ++i) {
                const float scaled = logits[order[i]] * logit_scale_;
                scores.push_back(softcap_ > 0.0f ? std::tanh(scaled / softcap_) * softcap_ : scaled);
            }
        }
        lattice.add_position(std::vector<Token>(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(k)),
                             std::move(scores));
    }
    return lattice;
}

void Drafter::truncate(int n_tokens) {
    n_pending_ = std::clamp(n_tokens - n_past_, 0, n_pending_);
    if (n_tokens < n_past_) {
        llama_memory_seq_rm(llama_get_memory(context_.get()), 0, n_tokens, -1);
        n_past_ = n_tokens;
    }
}

void Drafter::cut_out(int from, int n_tokens) {
    llama_memory_t memory = llama_get_memory(context_.get());
    if (from + n_tokens > n_past_ || !llama_memory_can_shift(memory)) {
        truncate(from);
        return;
    }
    llama_memory_seq_rm(memory, 0, from, from + n_tokens);
    llama_memory_seq_add(memory, 0, from + n_tokens, -1, -n_tokens);
    n_past_ -= n_tokens;
}

std::uint64_t Drafter::model_bytes() const { return llama_model_size(model_.get()); }

}  // namespace dflash
