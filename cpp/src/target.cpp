#include "dflash/target.h"

#include <algorithm>
#include <cctype>
#include <set>
#include <stdexcept>

#include "dflash/error.h"
#include "dflash/gguf_file.h"
#include "dflash/log.h"
#include "dflash/stats.h"
#include "llama-ext.h"
#include "llama-model.h"
#include "llama.h"

namespace dflash {
namespace {

// Architectures whose graphs hand out their layers' inputs at the pin; llama.cpp asserts on the others.
const std::set<std::string> feature_architectures = {
    "bailingmoe3", "deepseek4", "gemma4",     "gpt-oss",    "hunyuan_vl", "lfm2",       "lfm2moe",
    "llama",       "mimo2",     "minimax-01", "minimax-m2", "nanbeige",   "nemotron_h", "nemotron_h_moe",
    "qwen3",       "qwen35",    "qwen35moe",  "qwen3moe",   "qwen3next",  "qwen4exp",
};

ggml_type kv_type(const std::string & option, const std::string & name) {
    for (const ggml_type type : {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0, GGML_TYPE_Q5_1,
                                 GGML_TYPE_Q5_0, GGML_TYPE_Q4_1, GGML_TYPE_Q4_0, GGML_TYPE_IQ4_NL}) {
        if (name == ggml_type_name(type)) {
            return type;
        }
    }
    throw std::invalid_argument(option + " is '" + name +
                                "'; use f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0 or iq4_nl");
}

llama_flash_attn_type flash_attention(const std::string & name) {
    if (name == "auto") {
        return LLAMA_FLASH_ATTN_TYPE_AUTO;
    }
    if (name == "on") {
        return LLAMA_FLASH_ATTN_TYPE_ENABLED;
    }
    if (name == "off") {
        return LLAMA_FLASH_ATTN_TYPE_DISABLED;
    }
    throw std::invalid_argument("flash_attention is '" + name + "'; use auto, on or off");
}

void check(const TargetOptions & o) {
    if (o.n_ctx < 0) {
        throw std::invalid_argument("n_ctx is " + std::to_string(o.n_ctx) + "; use 0 (the model's own) or more");
    }
    if (o.n_threads < 0 || o.n_threads > 512) {
        throw std::invalid_argument("n_threads is " + std::to_string(o.n_threads) + "; use 0 (all cores) to 512");
    }
    if (o.n_batch < Target::max_rows || o.n_batch > 65536) {
        throw std::invalid_argument("n_batch is " + std::to_string(o.n_batch) + "; use " +
                                    std::to_string(Target::max_rows) + " to 65536");
    }
    const bool quantised_v = o.type_v != "f32" && o.type_v != "f16" && o.type_v != "bf16";
    if (quantised_v && o.flash_attention == "off") {
        throw std::invalid_argument("type_v '" + o.type_v + "' needs flash attention; leave flash_attention at auto");
    }
    if (o.n_sequences > o.n_batch) {
        throw std::invalid_argument("n_batch is smaller than n_sequences");
    }
    if (o.n_sequences < 1 || o.n_sequences > 256 || (o.n_sequences > 1 && o.n_ctx == 0)) {
        throw std::invalid_argument("n_sequences is " + std::to_string(o.n_sequences) +
                                    "; use 1 to 256, and with several a fixed n_ctx");
    }
    kv_type("type_k", o.type_k);
    kv_type("type_v", o.type_v);
    flash_attention(o.flash_attention);
}

std::string because(const std::string & reason) { return reason.empty() ? "" : ": " + reason; }

}  // namespace

bool computes_on_cpu(const llama_model & model, int n_gpu_layers) {
    return n_gpu_layers == 0 ||
           std::all_of(model.devices.begin(), model.devices.end(), [](const llama_device & device) {
               return ggml_backend_dev_type(device.dev) == GGML_BACKEND_DEVICE_TYPE_CPU;
           });
}

Target::Target(const std::string & path, const TargetOptions & options) : path_(path), options_(options) {
    init_backend();
    check(options_);
    const GgufFile file(path);
    file.require_language_model();
    foresee_memory(file);
    load(path);
    create_context();
    tokenizer_ = vocab().fingerprint();
}

Target::Target(llama_context * context, const std::string & path, const TargetOptions & options)
    : path_(path),
      options_(options),
      model_(const_cast<llama_model *>(llama_get_model(context)), [](llama_model *) {}),
      context_(context, [](llama_context *) {}) {
    init_backend();
    check(options_);
    GgufFile(path).require_language_model();
    tokenizer_ = vocab().fingerprint();
    n_ctx_ = static_cast<int>(llama_n_ctx_seq(context));
    options_.n_batch = static_cast<int>(llama_n_batch(context));
    threadpool_ = options.threadpool;
    n_threads_ = llama_n_threads(context);
    n_threads_batch_ = llama_n_threads_batch(context);
    is_view_ = true;
    max_draft_ = max_rows - 1;
}

Target::~Target() = default;

int Target::n_threads() const { return n_threads_; }

void Target::rest() {
    if (threadpool_) {
        threadpool_->rest();
    }
}

// Memory is promised before it is there: without this, a process that asks for too much dies while filling it.
void Target::foresee_memory(const GgufFile & file) const {
    constexpr std::uint64_t cell_bytes = 64;  // llama.cpp's book on a token's cell: a plan keeps it, too
    const auto n_cells =
        static_cast<std::uint64_t>(options_.n_ctx) * static_cast<std::uint64_t>(options_.n_sequences);
    if (options_.plan_only || !may_run_short(file, n_cells)) {
        return;
    }
    const std::uint64_t available = available_memory();
    if (available > 0 && n_cells * cell_bytes > available) {
        throw ModelError("a context of " + std::to_string(n_cells) +
                         " tokens is larger than this machine's memory; use a smaller n_ctx");
    }
    TargetOptions options = options_;
    options.plan_only = true;
    options.n_threads = 1;
    options.threadpool = nullptr;
    options.progress = nullptr;
    const Target planned(path_, options);
    require_room(planned.raw(), "a context of " + std::to_string(planned.n_ctx()) + " tokens for " + path_, true);
}

void Target::load(const std::string & path) {
    llama_model_params params = llama_model_default_params();
    params.n_gpu_layers = options_.n_gpu_layers;
    if (options_.plan_only) {
        params.no_alloc = true;
        params.load_mode = LLAMA_LOAD_MODE_NONE;  // llama.cpp asserts that nothing is mapped then
    }
    bool given_up = false;
    struct Progress {
        const std::function<bool(float)> & report;
        bool & given_up;
    } progress{options_.progress, given_up};
    if (options_.progress) {
        params.progress_callback_user_data = &progress;
        params.progress_callback = [](float share, void * data) {
            auto & p = *static_cast<Progress *>(data);
            p.given_up = !p.report(share);
            return !p.given_up;
        };
    }
    take_errors();
    model_.reset(llama_model_load_from_file(path.c_str(), params), llama_model_free);
    if (given_up) {
        throw Interrupted("loading was interrupted");
    }
    if (!model_) {
        throw ModelError("llama.cpp cannot load " + path + because(take_errors()));
    }
    if (llama_model_has_encoder(model_.get()) || !llama_model_has_decoder(model_.get()) ||
        llama_model_is_diffusion(model_.get())) {
        throw ModelError(path + " is not a decoder-only language model; its kind is not supported");
    }
}

void Target::create_context() {
    llama_context_params params = llama_context_default_params();
    params.n_ctx = static_cast<std::uint32_t>(options_.n_ctx * options_.n_sequences);
    params.n_batch = params.n_ubatch = static_cast<std::uint32_t>(options_.n_batch);
    params.n_seq_max = static_cast<std::uint32_t>(options_.n_sequences);
    params.n_outputs_max = static_cast<std::uint32_t>(options_.all_logits ? options_.n_batch : max_rows);
    // Recurrent layers keep this many snapshots to roll back over; other models ignore it.
    const bool recurrent = llama_model_is_recurrent(model_.get()) || llama_model_is_hybrid(model_.get());
    params.n_rs_seq = recurrent ? 16 : 0;
    share_settings(params);
    params.swa_full = true;  // a window that forgot rows could not take rejected ones back
    params.no_perf = true;
    const int n_threads = options_.n_threads > 0 ? options_.n_threads : default_threads();
    threadpool_ = options_.threadpool ? options_.threadpool : std::make_shared<Threadpool>(n_threads);
    params.n_threads = params.n_threads_batch = n_threads_ = n_threads_batch_ = threadpool_->n_threads();
    params.abort_callback_data = this;
    params.abort_callback = [](void * data) {
        auto & self = *static_cast<Target *>(data);
        return self.interrupt_ && self.interrupt_();
    };
    take_errors();
    context_.reset(llama_init_from_model(model_.get(), params), llama_free);
    if (!context_) {
        throw ModelError("llama.cpp cannot make a context of " + std::to_string(options_.n_ctx) + " tokens for " +
                         path_ + because(take_errors()) + "; try a smaller n_ctx or a quantised KV cache");
    }
    llama_attach_threadpool(context_.get(), threadpool_->raw(), threadpool_->raw());
    n_ctx_ = static_cast<int>(llama_n_ctx_seq(context_.get()));
    options_.n_batch = static_cast<int>(llama_n_batch(context_.get()));  // cut to a small context's size
    max_draft_ = recurrent ? static_cast<int>(llama_n_rs_seq(context_.get())) : max_rows - 1;
    max_draft_ = std::min(max_draft_, options_.n_batch - 1);
}

void Target::share_settings(llama_context_params & params) const {
    params.type_k = kv_type("type_k", options_.type_k);
    params.type_v = kv_type("type_v", options_.type_v);
    params.flash_attn_type = flash_attention(options_.flash_attention);
    if (ggml_is_quantized(params.type_v) && options_.flash_attention == "auto") {
        params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    }
}

void Target::append(const Token * tokens, int n, bool with_logits) {
    const int most = with_logits ? max_rows : options_.n_batch;
    if (n < 1 || n > most) {
        throw std::invalid_argument("a pass of " + std::to_string(n) + " tokens; use 1 to " + std::to_string(most));
    }
    if (n_past_ + n > n_ctx_) {
        throw ContextOverflowError("the context holds " + std::to_string(n_ctx_) +
                                   " tokens and is full; use a larger "
                                   "n_ctx or a shorter prompt");
    }
    std::vector<llama_pos> positions(static_cast<std::size_t>(n));
    std::vector<std::int32_t> n_seqs(static_cast<std::size_t>(n), 1);
    llama_seq_id sequence = 0;
    std::vector<llama_seq_id *> sequences(static_cast<std::size_t>(n), &sequence);
    std::vector<std::int8_t> outputs(static_cast<std::size_t>(n), with_logits);
    for (int i = 0; i < n; ++i) {
        positions[static_cast<std::size_t>(i)] = n_past_ + i;
    }
    llama_batch batch{
        n, const_cast<Token *>(tokens), nullptr, positions.data(), n_seqs.data(), sequences.data(), outputs.data()};
    take_errors();
    const std::int32_t status = llama_decode(context_.get(), batch);
    if (status == 0) {
        n_past_ += n;
        return;
    }
    // What was computed before the failure may remain in the cache.
    const int before = n_past_;
    n_past_ += n;
    truncate(before);
    if (status == 2) {
        throw Interrupted("interrupted");
    }
    if (status == 1) {
        throw ContextOverflowError("the KV cache has no room for " + std::to_string(n) + " more tokens");
    }
    throw ModelError("llama.cpp failed to decode" + because(take_errors()));
}

void Target::prefill(const Token * tokens, int n) { append(tokens, n, false); }

void Target::verify(const Token * tokens, int n) {
    const std::int64_t start = now_us();
    append(tokens, n, true);
    llama_synchronize(context_.get());  // a device works on after the call; the caller's clock shall not stop early
    sleep_until_us(start + pace_us_);
}

void Target::spare_threads(int n_threads) {
    llama_set_n_threads(context_.get(), std::max(1, n_threads_ - n_threads),
                        std::max(1, n_threads_batch_ - n_threads));
}

bool Target::on_cpu() const { return computes_on_cpu(*model_, options_.n_gpu_layers); }

double Target::measure_us(int n_rows, int n_repetitions, int n_spared) {
    const int before = n_past_;
    const Tokens tokens(static_cast<std::size_t>(n_rows), 0);
    std::vector<std::int64_t> spent;
    struct Spared {
        Target & target;
        ~Spared() { target.spare_threads(0); }
    } const restored{*this};
    spare_threads(n_spared);
    for (int i = 0; i < n_repetitions; ++i) {
        const std::int64_t start = now_us();
        verify(tokens.data(), n_rows);
        spent.push_back(now_us() - start);
        if (!truncate(before)) {
            throw Error("this model's state cannot be taken back; its passes cannot be measured in place");
        }
    }
    std::sort(spent.begin(), spent.end());
    return static_cast<double>(spent[spent.size() / 2]);
}

const float * Target::row(int i) const { return llama_get_logits_ith(context_.get(), i); }

bool Target::truncate(int n_tokens) {
    if (n_tokens >= n_past_) {
        return true;
    }
    llama_memory_t memory = llama_get_memory(context_.get());
    n_past_ = n_tokens;
    if (llama_memory_seq_rm(memory, 0, n_tokens, -1)) {
        return true;
    }
    llama_memory_clear(memory, true);
    n_past_ = 0;
    return false;
}

bool Target::gives_features(const std::string & architecture) {
    return feature_architectures.count(architecture) > 0;
}

void Target::enable_features(const std::vector<int> & layers) {
    const std::string architecture = metadata("general.architecture");
    if (!gives_features(architecture)) {
        throw IncompatibleDrafterError("targets of architecture " + architecture + " give no features");
    }
    if (n_feature_users_ > 0 && is_view_ && feature_layers_ == layers) {
        ++n_feature_users_;
        return;
    }
    if (!feature_layers_.empty()) {
        throw std::invalid_argument("this target has a drafter already; close that one first");
    }
    for (const int layer : layers) {
        if (layer < 0 || layer >= llama_model_n_layer(model_.get())) {
            throw std::invalid_argument("layer " + std::to_string(layer) + " is outside the target");
        }
    }
    feature_layers_ = layers;
    n_feature_users_ = 1;
    for (const int layer : feature_layers_) {
        llama_set_embeddings_layer_inp(context_.get(), static_cast<std::uint32_t>(layer), true);
    }
}

void Target::disable_features() {
    if (--n_feature_users_ > 0) {
        return;
    }
    for (const int layer : feature_layers_) {
        llama_set_embeddings_layer_inp(context_.get(), static_cast<std::uint32_t>(layer), false);
    }
    feature_layers_.clear();
}

Vocab Target::vocab() const { return Vocab(llama_model_get_vocab(model_.get())); }

std::string Target::description() const {
    char text[256] = {};
    llama_model_desc(model_.get(), text, sizeof(text));
    return text;
}

std::string Target::identity() const {
    std::string text = description() + "|" + std::to_string(model_bytes()) + "|" + std::to_string(tokenizer_) + "|" +
                       std::to_string(n_threads()) + "|" + std::to_string(options_.n_gpu_layers) + "|" +
                       options_.type_k + "|" + options_.type_v + "|" + options_.flash_attention + "|" +
                       std::to_string(pace_us_);
    for (std::size_t i = 0; i < ggml_backend_dev_count(); ++i) {
        text += std::string("|") + ggml_backend_dev_description(ggml_backend_dev_get(i));
    }
    return text;
}

std::string Target::chat_template() const {
    const char * text = llama_model_chat_template(model_.get(), nullptr);
    return text ? text : "";
}

std::string Target::metadata(const std::string & key) const {
    const std::int32_t length = llama_model_meta_val_str(model_.get(), key.c_str(), nullptr, 0);
    if (length < 0) {
        return {};
    }
    std::string value(static_cast<std::size_t>(length) + 1, '\0');
    llama_model_meta_val_str(model_.get(), key.c_str(), value.data(), value.size());
    value.resize(static_cast<std::size_t>(length));
    return value;
}

std::uint64_t Target::model_bytes() const { return llama_model_size(model_.get()); }

int Target::n_ctx_train() const { return llama_model_n_ctx_train(model_.get()); }

}  // namespace dflash
