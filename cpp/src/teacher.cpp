#include "dflash/teacher.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "dflash/error.h"
#include "dflash/log.h"
#include "llama-ext.h"
#include "llama.h"

namespace dflash {
namespace {

// Rounds to nearest, ties to even; NaN stays NaN.
std::uint16_t to_bfloat16(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    if (std::isnan(value)) {
        return static_cast<std::uint16_t>((bits >> 16) | 64);
    }
    return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// Appends the k likeliest tokens of a row and their log probabilities, best first.
void append_top(const float * logits, int n_vocab, std::size_t k, Tokens & tokens, std::vector<float> & log_probs) {
    std::vector<std::pair<float, Token>> best;  // a heap whose front is the worst kept
    best.reserve(k + 1);
    const auto better = [](const auto & a, const auto & b) {
        return a.first > b.first || (a.first == b.first && a.second < b.second);
    };
    float highest = -INFINITY;
    for (Token token = 0; token < n_vocab; ++token) {
        const float logit = logits[token];
        highest = std::max(highest, logit);
        if (best.size() < k) {
            best.emplace_back(logit, token);
            std::push_heap(best.begin(), best.end(), better);
        } else if (logit > best.front().first) {
            std::pop_heap(best.begin(), best.end(), better);
            best.back() = {logit, token};
            std::push_heap(best.begin(), best.end(), better);
        }
    }
    // What lies 20 below the highest adds less than 1e-8 of it each; skipping it saves nearly every exp.
    double total = 0.0;
    for (Token token = 0; token < n_vocab; ++token) {
        if (!(logits[token] < highest - 20.0f)) {
            total += std::exp(logits[token] - highest);
        }
    }
    if (!std::isfinite(total)) {
        throw ModelError("the model computed no finite logits; its weights are damaged or its KV type overflows");
    }
    const auto log_total = static_cast<float>(std::log(total)) + highest;
    std::sort_heap(best.begin(), best.end(), better);
    for (const auto & [logit, token] : best) {
        tokens.push_back(token);
        log_probs.push_back(logit - log_total);
    }
}

}  // namespace

Teacher::Teacher(std::shared_ptr<Target> target, std::vector<int> tap_layers)
    : target_(std::move(target)), tap_layers_(std::move(tap_layers)) {
    if (!target_->gives_all_logits()) {
        throw std::invalid_argument("a teacher needs a target made with all_logits");
    }
    if (!tap_layers_.empty()) {
        target_->enable_features(tap_layers_);
    }
    n_embd_ = llama_model_n_embd(llama_get_model(target_->raw()));
    const auto n_sequences = static_cast<int>(llama_n_seq_max(target_->raw()));
    for (int i = n_sequences - 1; i >= 0; --i) {
        free_.push_back(i);
    }
}

Teacher::~Teacher() {
    llama_memory_clear(llama_get_memory(target_->raw()), true);
    target_->disable_features();
}

void Teacher::decode(const Tokens & tokens, const std::vector<int> & positions, std::vector<int> & sequences,
                     const std::vector<std::int8_t> & outputs) {
    const std::size_t n = tokens.size();
    std::vector<std::int32_t> n_seqs(n, 1);
    std::vector<llama_seq_id *> ids(n);
    for (std::size_t i = 0; i < n; ++i) {
        ids[i] = &sequences[i];
    }
    const llama_batch batch{static_cast<std::int32_t>(n),
                            const_cast<Token *>(tokens.data()),
                            nullptr,
                            const_cast<llama_pos *>(positions.data()),
                            n_seqs.data(),
                            ids.data(),
                            const_cast<std::int8_t *>(outputs.data())};
    take_errors();
    const std::int32_t status = llama_decode(target_->raw(), batch);
    if (status == 2) {
        throw Interrupted("interrupted");
    }
    if (status != 0) {
        const std::string reason = take_errors();
        throw ModelError("llama.cpp failed to decode" + (reason.empty() ? "" : ": " + reason));
    }
    llama_synchronize(target_->raw());
}

void Teacher::submit(int id, const Tokens & prompt, const SamplerOptions & sampling, int max_tokens) {
    target_->vocab().check(prompt);
    if (free_.empty()) {
        throw std::invalid_argument("every sequence is taken; step until one is free");
    }
    if (prompt.empty() || max_tokens < 1 || static_cast<int>(prompt.size()) + max_tokens > target_->n_ctx()) {
        throw std::invalid_argument("a prompt of " + std::to_string(prompt.size()) + " tokens and an answer of " +
                                    std::to_string(max_tokens) + " do not fit a context of " +
                                    std::to_string(target_->n_ctx()));
    }
    const int sequence = free_.back();
    auto sampler = std::make_unique<Sampler>(target_->vocab(), sampling);
    sampler->accept_prompt(prompt);
    const int n = static_cast<int>(prompt.size());
    for (int begin = 0; begin < n; begin += target_->n_batch()) {
        const int end = std::min(n, begin + target_->n_batch());
        const Tokens part(prompt.begin() + begin, prompt.begin() + end);
        std::vector<int> positions, sequences(part.size(), sequence);
        for (int i = begin; i < end; ++i) {
            positions.push_back(i);
        }
        std::vector<std::int8_t> outputs(part.size(), 0);
        outputs.back() = end == n;
        try {
            decode(part, positions, sequences, outputs);
        } catch (...) {
            llama_memory_seq_rm(llama_get_memory(target_->raw()), sequence, -1, -1);
            throw;
        }
    }
    free_.pop_back();
    const Token first = sampler->sample(llama_get_logits_ith(target_->raw(), -1), n);
    active_.push_back({id, sequence, n, max_tokens, first, {}, std::move(sampler), {}});
}

std::vector<Answer> Teacher::step() {
    std::vector<Answer> ended;
    // A token chosen last time either ends its answer or is seen by the target now.
    for (auto it = active_.begin(); it != active_.end();) {
        const bool end = target_->vocab().is_end(it->next);
        if (!end) {
            it->answer.push_back(it->next);
        }
        bool looped = false;
        if (!end && it->answer.size() >= loop_length) {
            const auto begin = it->answer.end() - loop_length;
            looped = ++it->seen[Tokens(begin, it->answer.end())] == loop_times;
            if (looped) {
                it->answer.erase(begin, it->answer.end());
            }
        }
        if (end || looped || static_cast<int>(it->answer.size()) == it->max_tokens) {
            llama_memory_seq_rm(llama_get_memory(target_->raw()), it->sequence, -1, -1);
            free_.push_back(it->sequence);
            ended.push_back({it->id, std::move(it->answer), end, looped});
            it = active_.erase(it);
        } else {
            ++it;
        }
    }
    if (active_.empty()) {
        return ended;
    }
    // llama.cpp takes sequences in one pass only as long as their numbers follow each other.
    std::sort(active_.begin(), active_.end(),
              [](const Active & a, const Active & b) { return a.sequence < b.sequence; });
    Tokens tokens;
    std::vector<int> positions, sequences;
    for (const Active & a : active_) {
        tokens.push_back(a.next);
        positions.push_back(a.n_past);
        sequences.push_back(a.sequence);
    }
    decode(tokens, positions, sequences, std::vector<std::int8_t>(tokens.size(), 1));
    for (std::size_t i = 0; i < active_.size(); ++i) {
        Active & a = active_[i];
        a.sampler->accept(a.next);
        ++a.n_past;
        a.next = a.sampler->sample(llama_get_logits_ith(target_->raw(), static_cast<std::int32_t>(i)), a.n_past);
    }
    return ended;
}

Lesson Teacher::read(const Tokens & text, int top_k, int first_row) {
    target_->vocab().check(text);
    if (!active_.empty()) {
        throw std::invalid_argument("answers are being written; finish them first");
    }
    const int n = static_cast<int>(text.size());
    if (n < 1 || n > target_->n_ctx()) {
        throw std::invalid_argument("a text of " + std::to_string(n) + " tokens does not fit a context of " +
                                    std::to_string(target_->n_ctx()));
    }
    const int n_vocab = target_->vocab().size();
    if (top_k < 1 || top_k > n_vocab || first_row < 0 || first_row >= n) {
        throw std::invalid_argument("top_k is " + std::to_string(top_k) + " from row " + std::to_string(first_row) +
                                    "; use 1 to the vocabulary's size, and a row of the text");
    }
    const auto n_taps = tap_layers_.size();
    const auto hidden = static_cast<std::size_t>(n_embd_);
    Lesson lesson;
    lesson.features.resize(static_cast<std::size_t>(n) * n_taps * hidden);
    llama_memory_seq_rm(llama_get_memory(target_->raw()), 0, -1, -1);
    for (int begin = 0; begin < n; begin += target_->n_batch()) {
        const int end = std::min(n, begin + target_->n_batch());
        const Tokens part(text.begin() + begin, text.begin() + end);
        std::vector<int> positions, sequences(part.size(), 0);
        for (int i = begin; i < end; ++i) {
            positions.push_back(i);
        }
        std::vector<std::int8_t> outputs;
        for (int i = begin; i < end; ++i) {
            outputs.push_back(i >= first_row);
        }
        decode(part, positions, sequences, outputs);
        for (std::size_t k = 0; k < n_taps; ++k) {
            const float * rows =
                llama_get_embeddings_layer_inp(target_->raw(), static_cast<std::uint32_t>(tap_layers_[k]));
            for (std::size_t i = 0; i < part.size(); ++i) {
                std::uint16_t * to = &lesson.features[((static_cast<std::size_t>(begin) + i) * n_taps + k) * hidden];
                std::transform(rows + i * hidden, rows + (i + 1) * hidden, to, to_bfloat16);
            }
        }
        for (int i = std::max(begin, first_row); i < end; ++i) {
            append_top(llama_get_logits_ith(target_->raw(), i - begin), n_vocab, static_cast<std::size_t>(top_k),
                       lesson.top_tokens, lesson.top_log_probs);
        }
    }
    llama_memory_seq_rm(llama_get_memory(target_->raw()), 0, -1, -1);
    return lesson;
}

}  // namespace dflash
