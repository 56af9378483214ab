#include "dflash/peer.h"

#include <algorithm>
#include <sstream>
#include <stdexcept>
#include <vector>

#include "common.h"
#include "dflash/drafter.h"
#include "dflash/error.h"
#include "dflash/gguf_file.h"
#include "dflash/log.h"
#include "llama.h"
#include "log.h"
#include "sampling.h"
#include "speculative.h"

namespace dflash {
namespace {

constexpr llama_seq_id sequence = 0;

std::string because(const std::string & reason) { return reason.empty() ? "" : ": " + reason; }

bool drafts_from_text(common_speculative_type type) {
    return common_speculative_type_to_str(type).rfind("ngram-", 0) == 0;
}

// Those that a bench can compare: not eagle3 and dspark, whose models are others, and not our own.
std::vector<common_speculative_type> parse_types(const std::string & names) {
    std::vector<common_speculative_type> types;
    std::istringstream stream(names);
    for (std::string name; std::getline(stream, name, ',');) {
        const common_speculative_type type = common_speculative_type_from_name(name);
        switch (type) {
            case COMMON_SPECULATIVE_TYPE_NONE:
            case COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE:
            case COMMON_SPECULATIVE_TYPE_DRAFT_DFLASH:
            case COMMON_SPECULATIVE_TYPE_DRAFT_MTP:
            case COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE:
            case COMMON_SPECULATIVE_TYPE_NGRAM_MAP_K:
            case COMMON_SPECULATIVE_TYPE_NGRAM_MAP_K4V:
            case COMMON_SPECULATIVE_TYPE_NGRAM_MOD: types.push_back(type); break;
            default:
                throw std::invalid_argument("llama.cpp's speculation '" + name +
                                            "' cannot be measured; use none, draft-dflash, draft-simple, draft-mtp, "
                                            "ngram-simple, ngram-map-k, ngram-map-k4v or ngram-mod");
        }
    }
    if (types.empty()) {
        throw std::invalid_argument("no speculative type of llama.cpp is named");
    }
    return types;
}

bool has(const std::vector<common_speculative_type> & types, common_speculative_type type) {
    return std::find(types.begin(), types.end(), type) != types.end();
}

// What llama.cpp would assert on, or crash for want of.
void check(const std::vector<common_speculative_type> & types, const PeerOptions & options, const Target & target) {
    if (options.width < 0 || options.width > Target::max_rows - 1) {
        throw std::invalid_argument("width is " + std::to_string(options.width) + "; use 1 to " +
                                    std::to_string(Target::max_rows - 1));
    }
    const bool dflash = has(types, COMMON_SPECULATIVE_TYPE_DRAFT_DFLASH);
    const bool simple = has(types, COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE);
    if ((dflash || simple) && options.drafter.empty()) {
        throw std::invalid_argument("llama.cpp's " + options.types + " needs a drafter; give one");
    }
    if (dflash && simple) {
        throw std::invalid_argument("draft-dflash and draft-simple take different drafters; use one of them");
    }
    if (dflash) {
        Drafter::check(options.drafter, target);
    }
    if (simple) {
        GgufFile(options.drafter).require_language_model();
    }
    if (has(types, COMMON_SPECULATIVE_TYPE_DRAFT_MTP) &&
        GgufFile(target.path()).arch_integer("nextn_predict_layers", 0) < 1) {
        throw IncompatibleDrafterError(target.path() + " has no layers for draft-mtp (multi-token prediction)");
    }
}

}  // namespace

struct Peer::Llama {
    common_params params;
    std::unique_ptr<Threadpool> threadpool;
    llama_context_ptr target;
    common_speculative_init_result_ptr drafter;  // draft model and context
    common_speculative_ptr speculative;          // null: plain decoding
    bool restores_target = false;                // its cache cannot be cut: a copy is kept for each draft
    bool restores_drafter = false;
    Source source = Source::none;
    std::function<bool()> interrupt;
    int n_ctx = 0;

    llama_context * drafter_context() const { return drafter ? drafter->context() : nullptr; }

    // Removes what both caches hold from position `from` on.
    void cut(llama_pos from) const {
        llama_memory_seq_rm(llama_get_memory(target.get()), sequence, from, -1);
        if (drafter_context()) {
            llama_memory_seq_rm(llama_get_memory(drafter_context()), sequence, from, -1);
        }
    }

    void decode(common_batch & batch) const {
        take_errors();
        const int result = llama_process(target.get(), LLAMA_PROCESS_TYPE_DECODE, batch.get());
        if (result == 2) {
            throw Interrupted("the generation was interrupted");
        }
        if (result != 0) {
            throw ModelError("llama.cpp failed to compute a pass" + because(take_errors()));
        }
    }

    void process(const common_batch & batch) const {
        if (speculative && !common_speculative_process(speculative.get(), batch)) {
            throw ModelError("llama.cpp's speculation failed on a batch" + because(take_errors()));
        }
    }
};

Peer::Peer(std::shared_ptr<Target> target, const PeerOptions & options)
    : target_(std::move(target)), llama_(std::make_unique<Llama>()) {
    const std::vector<common_speculative_type> types = parse_types(options.types);
    check(types, options, *target_);
    llama_->interrupt = options.interrupt;
    llama_->n_ctx = target_->n_ctx();
    llama_->source = has(types, COMMON_SPECULATIVE_TYPE_NONE)                    ? Source::none
                     : std::all_of(types.begin(), types.end(), drafts_from_text) ? Source::ngram
                                                                                 : Source::drafter;
    common_params & params = llama_->params;
    params.model.path = target_->path();
    params.n_ctx = target_->n_ctx();
    params.n_batch = params.n_ubatch = target_->n_batch();
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = target_->n_threads();
    params.sampling.temp = 0.0f;
    params.sampling.no_perf = true;
    params.speculative.types = types;
    params.speculative.draft.mparams.path = options.drafter;
    params.speculative.draft.n_gpu_layers = options.n_gpu_layers;
    if (options.width > 0) {
        params.speculative.draft.n_max = options.width;
    }
    const auto limits =
        common_speculative_get_output_limits(params.n_batch, 1, common_speculative_n_max(&params.speculative));
    params.n_outputs_max = limits.total;
    params.n_outputs_max_per_seq = limits.per_seq;
    llama_context_params context = common_context_params_to_llama(params);
    target_->share_settings(context);
    params.cache_type_k = context.type_k;
    params.cache_type_v = context.type_v;
    params.flash_attn_type = context.flash_attn_type;
    context.no_perf = true;
    context.abort_callback_data = llama_.get();
    context.abort_callback = [](void * data) {
        const auto & llama = *static_cast<Llama *>(data);
        return llama.interrupt && llama.interrupt();
    };
    common_log_set_verbosity_thold(LOG_LEVEL_WARN);  // what it says of every start is of no use here
    take_errors();
    auto * model = const_cast<llama_model *>(llama_get_model(target_->raw()));
    llama_->target.reset(llama_init_from_model(model, context));
    if (!llama_->target) {
        throw ModelError("llama.cpp cannot make a second context for " + target_->path() + because(take_errors()));
    }
    llama_->threadpool = std::make_unique<Threadpool>(target_->n_threads(), false);
    llama_attach_threadpool(llama_->target.get(), llama_->threadpool->raw(), llama_->threadpool->raw());
    const bool with_drafter = !options.drafter.empty() && (has(types, COMMON_SPECULATIVE_TYPE_DRAFT_DFLASH) ||
                                                           has(types, COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE));
    try {
        if (with_drafter || has(types, COMMON_SPECULATIVE_TYPE_DRAFT_MTP)) {
            if (!with_drafter) {
                params.speculative.draft.mparams.path.clear();
            }
            common_params draft = common_base_params_to_speculative(params);
            llama_->drafter = common_speculative_init_from_params(draft, model, llama_->target.get());
            if (!llama_->drafter->context()) {
                throw ModelError("llama.cpp cannot load the drafter " + options.drafter + because(take_errors()));
            }
            if (with_drafter &&
                Vocab(llama_model_get_vocab(llama_->drafter->model())).fingerprint() != target_->tokenizer()) {
                throw IncompatibleDrafterError(options.drafter +
                                               " does not fit this target: its tokenizer has other tokens");
            }
        }
        params.speculative.draft.ctx_tgt = llama_->target.get();
        params.speculative.draft.ctx_dft = llama_->drafter_context();
        llama_->restores_target = common_context_can_seq_rm(llama_->target.get()) == COMMON_CONTEXT_SEQ_RM_TYPE_FULL;
        llama_->restores_drafter = llama_->drafter && common_context_can_seq_rm(llama_->drafter_context()) ==
                                                          COMMON_CONTEXT_SEQ_RM_TYPE_FULL;
        reset();
    } catch (const Error &) {
        throw;
    } catch (const std::exception & error) {
        throw ModelError("llama.cpp cannot start " + options.types + ": " + error.what());
    }
}

Peer::~Peer() = default;

void Peer::reset() {
    if (llama_->source != Source::none) {
        llama_->speculative.reset();  // two at once would both read the same contexts
        llama_->speculative.reset(common_speculative_init(llama_->params.speculative, 1));
    }
}

MemoryUse Peer::memory() const {
    MemoryUse use = memory_use(llama_->target.get());
    use.weights = 0;  // the target's own
    if (llama_->drafter_context()) {
        const MemoryUse drafter = memory_use(llama_->drafter_context());
        use.weights += drafter.weights;
        use.context += drafter.context;
        use.compute += drafter.compute;
    }
    return use;
}

Tokens Peer::generate(const Tokens & prompt, int max_tokens, const std::string & grammar) {
    if (max_tokens < 1) {
        throw std::invalid_argument("max_tokens is " + std::to_string(max_tokens) + "; use 1 or more");
    }
    if (prompt.empty()) {
        throw std::invalid_argument("the prompt is empty; give at least one token");
    }
    const Vocab vocab = target_->vocab();
    vocab.check(prompt);
    target_->rest();
    const Llama & llama = *llama_;
    if (static_cast<int>(prompt.size()) >= llama.n_ctx) {
        throw ContextOverflowError("the prompt has " + std::to_string(prompt.size()) + " tokens, the context holds " +
                                   std::to_string(llama.n_ctx));
    }
    common_params_sampling sampling = llama.params.sampling;
    if (!grammar.empty()) {
        sampling.grammar = common_grammar(COMMON_GRAMMAR_TYPE_USER, grammar);
    }
    take_errors();
    const common_sampler_ptr sampler(common_sampler_init(llama_get_model(llama.target.get()), sampling));
    if (!sampler) {
        throw std::invalid_argument("llama.cpp refuses the grammar" + because(take_errors()));
    }
    common_sampler_ptr sampling_now(common_sampler_clone(sampler.get()));

    stats_ = {};
    stats_.n_prompt = static_cast<std::int64_t>(prompt.size());
    const std::int64_t began = now_us();
    const auto note = [this, began](Event::Lane lane, const char * name, std::int64_t from, int n_rows = 0,
                                    int n_accepted = 0) {
        stats_.add_event({lane, name, from - began, now_us() - began, n_rows, n_accepted});
    };
    llama.cut(0);
    common_batch batch(llama.target.get());
    llama_tokens cached(prompt.begin(), prompt.end() - 1);  // what the target's cache holds
    cached.reserve(static_cast<std::size_t>(llama.n_ctx));
    for (std::size_t at = 0; at < cached.size();) {
        const std::int64_t start = now_us();
        const std::size_t n = std::min(cached.size() - at, static_cast<std::size_t>(llama.params.n_batch));
        batch.clear();
        for (std::size_t i = at; i < at + n; ++i) {
            batch.add(cached[i], static_cast<llama_pos>(i), sequence, false);
        }
        llama.decode(batch);
        note(Event::Lane::target, "prefill", start, static_cast<int>(n));
        const std::int64_t read = now_us();
        llama.process(batch);
        note(Event::Lane::drafter, "inject", read, static_cast<int>(n));
        at += n;
    }
    if (llama.speculative) {
        common_speculative_begin(llama.speculative.get(), sequence, cached);
    }
    stats_.prefill_us = now_us() - began;

    Tokens answer;
    llama_token anchor = prompt.back();
    llama_tokens draft;
    common_prompt_checkpoint before;  // where the cache cannot be cut, how it was before the draft
    const std::int64_t decoding = now_us();
    for (bool ended = false; !ended && static_cast<int>(answer.size()) < max_tokens;) {
        if (llama.interrupt && llama.interrupt()) {
            throw Interrupted("the generation was interrupted");
        }
        const auto n_past = static_cast<llama_pos>(cached.size());
        const std::int64_t start = now_us();
        const bool repeated = !draft.empty();  // the accepted part of a draft, verified again after a restoration
        if (llama.speculative && !repeated) {
            const auto memory = llama_get_memory(llama.target.get());
            before.update_pos(n_past, llama_memory_seq_pos_min(memory, sequence),
                              llama_memory_seq_pos_max(memory, sequence));
            if (llama.restores_drafter) {
                before.update_dft(llama.drafter_context(), sequence, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY);
            }
            const int room = std::min(llama.n_ctx - n_past - 2, max_tokens - static_cast<int>(answer.size()) - 1);
            auto & wanted = common_speculative_get_draft_params(llama.speculative.get(), sequence);
            wanted = {};
            wanted.drafting = true;
            wanted.n_max = std::max(0, room);
            wanted.pos0 = n_past;
            wanted.id_last = anchor;
            wanted.prompt = &cached;
            wanted.result = &draft;
            common_speculative_draft(llama.speculative.get());
            if (!draft.empty() && llama.restores_target) {
                before.update_tgt(llama.target.get(), sequence, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY);
            }
            if (llama.restores_drafter) {
                before.load_dft(llama.drafter_context(), sequence, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY);
            }
            if (llama.drafter_context()) {
                llama_memory_seq_rm(llama_get_memory(llama.drafter_context()), sequence, n_past, -1);
            }
            note(Event::Lane::drafter, "draft", start, static_cast<int>(draft.size()));
        }
        const std::int64_t drafted = now_us();
        batch.clear();
        batch.add(anchor, n_past, sequence, true);
        for (std::size_t i = 0; i < draft.size(); ++i) {
            batch.add(draft[i], n_past + 1 + static_cast<llama_pos>(i), sequence, true);
        }
        llama.decode(batch);
        const std::int64_t decoded = now_us();
        const common_sampler_ptr unsampled(llama.restores_target ? common_sampler_clone(sampling_now.get())
                                                                 : nullptr);
        // The first row that is read waits for the pass: where it runs on a device, this belongs to the verification.
        llama_synchronize(llama.target.get());
        const std::int64_t verified = now_us();
        llama.process(batch);
        const std::int64_t processed = now_us();
        const llama_tokens tokens = common_sampler_sample_and_accept_n(sampling_now.get(), llama.target.get(), draft);
        const int n_accepted = static_cast<int>(tokens.size()) - 1;
        const int n_rows = static_cast<int>(draft.size()) + 1;
        stats_.add_event({Event::Lane::target, "verify", drafted - began, verified - began, n_rows, n_accepted});
        if (llama.drafter) {
            stats_.add_event({Event::Lane::drafter, "inject", verified - began, processed - began, n_rows});
        }
        note(Event::Lane::host, "sample", processed);
        if (llama.restores_target && n_accepted < static_cast<int>(draft.size())) {
            draft.assign(tokens.begin(), tokens.end());
            before.load_tgt(llama.target.get(), sequence, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY);
            if (llama.restores_drafter) {
                before.load_dft(llama.drafter_context(), sequence, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY);
            }
            llama.cut(n_past);
            sampling_now.reset(common_sampler_clone(unsampled.get()));
            stats_.decode_us = now_us() - decoding;
            continue;
        }
        if (llama.speculative) {
            common_speculative_accept(llama.speculative.get(), sequence, static_cast<std::uint16_t>(n_accepted));
        }
        for (const llama_token token : tokens) {
            ++stats_.n_committed;
            if (vocab.is_end(token)) {
                ended = true;
                break;
            }
            answer.push_back(token);
            cached.push_back(anchor);
            anchor = token;
            if (static_cast<int>(answer.size()) == max_tokens) {
                break;
            }
        }
        ended = ended || static_cast<int>(cached.size()) + 1 >= llama.n_ctx;
        draft.clear();
        llama.cut(static_cast<llama_pos>(cached.size()));
        Stats::Step step;
        step.source = n_rows > 1 ? llama.source : Source::none;
        step.n_offered = n_rows - 1;
        step.n_accepted = n_accepted;
        step.n_tokens = static_cast<int>(tokens.size());
        step.us = decoded - start;
        step.verify_us = verified - drafted;
        stats_.add_step(step);
    }
    stats_.decode_us = now_us() - decoding;
    stats_.n_completion = static_cast<std::int64_t>(answer.size());
    return answer;
}

}  // namespace dflash
