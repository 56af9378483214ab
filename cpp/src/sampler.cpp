#include "dflash/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "dflash/error.h"
#include "dflash/log.h"
#include "dflash/noise.h"
#include "llama.h"

namespace dflash {
namespace {

[[noreturn]] void refuse(const std::string & name, double value, const std::string & range) {
    throw std::invalid_argument(name + " is " + std::to_string(value) + "; use " + range);
}

[[noreturn]] void no_finite_logits() {
    throw ModelError("the model computed no finite logits; its weights are damaged or its KV type overflows");
}

// NaN fails every comparison, so each test is written as "not inside".
void check(const SamplerOptions & o) {
    if (!(o.temperature >= 0.0f && o.temperature <= 100.0f)) {
        refuse("temperature", o.temperature, "0 (greedy) to 100");
    }
    if (o.top_k < 0) {
        refuse("top_k", o.top_k, "0 (off) or more");
    }
    if (!(o.top_p > 0.0f && o.top_p <= 1.0f)) {
        refuse("top_p", o.top_p, "more than 0 and at most 1 (off)");
    }
    if (!(o.min_p >= 0.0f && o.min_p <= 1.0f)) {
        refuse("min_p", o.min_p, "0 (off) to 1");
    }
    if (!(o.typical_p > 0.0f && o.typical_p <= 1.0f)) {
        refuse("typical_p", o.typical_p, "more than 0 and at most 1 (off)");
    }
    if (!(o.repeat_penalty > 0.0f && o.repeat_penalty <= 100.0f)) {
        refuse("repeat_penalty", o.repeat_penalty, "more than 0 and at most 100; 1 is off");
    }
    if (!(std::fabs(o.frequency_penalty) <= 100.0f)) {
        refuse("frequency_penalty", o.frequency_penalty, "-100 to 100; 0 is off");
    }
    if (!(std::fabs(o.presence_penalty) <= 100.0f)) {
        refuse("presence_penalty", o.presence_penalty, "-100 to 100; 0 is off");
    }
    if (o.penalty_last_n < 0) {
        refuse("penalty_last_n", o.penalty_last_n, "0 (off) or more");
    }
    for (const auto & [token, bias] : o.logit_bias) {
        if (std::isnan(bias) || bias == std::numeric_limits<float>::infinity()) {
            refuse("logit_bias[" + std::to_string(token) + "]", bias, "a number, or -inf to forbid the token");
        }
    }
}

}  // namespace

struct Sampler::Candidates {
    std::vector<llama_token_data> data;
    llama_token_data_array array{};
};

Sampler::Sampler(Vocab vocab, const SamplerOptions & options)
    : vocab_(vocab),
      options_(options),
      bias_(nullptr, llama_sampler_free),
      penalties_(nullptr, llama_sampler_free),
      truncation_(nullptr, llama_sampler_free),
      grammar_(nullptr, llama_sampler_free),
      candidates_(std::make_unique<Candidates>()) {
    check(options_);
    const auto add = [](SamplerPtr & chain, llama_sampler * sampler) {
        if (!chain) {
            chain.reset(llama_sampler_chain_init(llama_sampler_chain_default_params()));
        }
        llama_sampler_chain_add(chain.get(), sampler);
    };
    const int n_vocab = vocab_.size();
    if (!options_.logit_bias.empty()) {
        std::vector<llama_logit_bias> bias;
        for (const auto & [token, value] : options_.logit_bias) {
            vocab_.check({token});
            bias.push_back({token, value});
        }
        bias_.reset(llama_sampler_init_logit_bias(n_vocab, static_cast<std::int32_t>(bias.size()), bias.data()));
    }
    const bool penalises =
        options_.repeat_penalty != 1.0f || options_.frequency_penalty != 0.0f || options_.presence_penalty != 0.0f;
    if (penalises && options_.penalty_last_n > 0) {
        penalties_.reset(llama_sampler_init_penalties(n_vocab, options_.penalty_last_n, options_.repeat_penalty,
                                                      options_.frequency_penalty, options_.presence_penalty));
    }
    if (!greedy()) {
        if (options_.top_k > 0) {
            add(truncation_, llama_sampler_init_top_k(options_.top_k));
        }
        if (options_.typical_p < 1.0f) {
            add(truncation_, llama_sampler_init_typical(options_.typical_p, 1));
        }
        if (options_.top_p < 1.0f) {
            add(truncation_, llama_sampler_init_top_p(options_.top_p, 1));
        }
        if (options_.min_p > 0.0f) {
            add(truncation_, llama_sampler_init_min_p(options_.min_p, 1));
        }
    }
    if (!options_.grammar.empty()) {
        take_errors();
        grammar_.reset(llama_sampler_init_grammar(vocab_.raw(), options_.grammar.c_str(), "root"));
        const std::string reason = take_errors();
        if (!grammar_) {
            throw std::invalid_argument("the grammar does not parse" + (reason.empty() ? "" : ": " + reason) +
                                        "; GBNF with a rule named root is expected");
        }
    }
}

Sampler::~Sampler() = default;

Token Sampler::sample(const float * logits, std::int64_t position) {
    const Token token = draw(logits, position, false);
    return !grammar_ || allowed(token) ? token : draw(logits, position, true);
}

void Sampler::accept(Token token) {
    accept_prompt({token});
    if (grammar_) {
        llama_sampler_accept(grammar_.get(), token);
    }
}

void Sampler::accept_prompt(const Tokens & prompt) {
    if (!penalties_) {
        return;
    }
    for (const Token token : prompt) {
        llama_sampler_accept(penalties_.get(), token);
    }
    recent_.insert(recent_.end(), prompt.begin(), prompt.end());
    const auto kept = static_cast<std::size_t>(options_.penalty_last_n);
    if (recent_.size() > kept) {
        recent_.erase(recent_.begin(), recent_.end() - static_cast<std::ptrdiff_t>(kept));
    }
}

// llama.cpp looks every candidate up in a hash table; only recent tokens can be in it, so only they are shown.
void Sampler::penalise() {
    Tokens distinct = recent_;
    std::sort(distinct.begin(), distinct.end());
    distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
    std::vector<llama_token_data> shown;
    for (const Token token : distinct) {
        shown.push_back(candidates_->data[static_cast<std::size_t>(token)]);
    }
    llama_token_data_array array{shown.data(), shown.size(), -1, false};
    llama_sampler_apply(penalties_.get(), &array);
    for (const llama_token_data & candidate : shown) {
        candidates_->data[static_cast<std::size_t>(candidate.id)].logit = candidate.logit;
    }
}

bool Sampler::allowed(Token token) {
    llama_token_data one{token, 1.0f, 0.0f};
    llama_token_data_array array{&one, 1, -1, false};
    llama_sampler_apply(grammar_.get(), &array);
    return std::isfinite(one.logit);
}

// Candidates after bias, penalties, (grammar,) truncation; logits not yet divided by the temperature.
void Sampler::fill(const float * logits, bool constrained) {
    const int n = vocab_.size();
    auto & [data, array] = *candidates_;
    data.resize(static_cast<std::size_t>(n));
    for (Token token = 0; token < n; ++token) {
        // A NaN would poison every comparison downstream; it can never be a choice.
        const float logit = logits[token];
        data[static_cast<std::size_t>(token)] = {token, std::isnan(logit) ? -INFINITY : logit, 0.0f};
    }
    array = {data.data(), data.size(), -1, false};
    if (bias_) {
        llama_sampler_apply(bias_.get(), &array);
    }
    if (penalties_) {
        penalise();
    }
    if (constrained) {
        llama_sampler_apply(grammar_.get(), &array);
        array.size =
            static_cast<std::size_t>(std::remove_if(array.data, array.data + array.size,
                                                    [](const llama_token_data & c) { return c.logit == -INFINITY; }) -
                                     array.data);
        if (array.size == 0) {
            throw Error("the grammar allows no token of this vocabulary here; check that it can end");
        }
    }
    if (truncation_) {
        llama_sampler_apply(truncation_.get(), &array);
    }
}

// argmax of logit / temperature + noise; without noise where greedy.
Token Sampler::draw(const float * logits, std::int64_t position, bool constrained) {
    const GumbelNoise noise(options_.seed, position);
    const double scale = greedy() ? 1.0 : 1.0 / options_.temperature;
    const bool with_noise = !greedy();
    Token best = -1;
    double best_score = -std::numeric_limits<double>::infinity();
    const auto consider = [&](Token token, float logit) {
        double score = logit * scale;
        if (with_noise) {
            if (score + noise.upper_bound(token) < best_score) {
                return;
            }
            score += noise(token);
        }
        if (score > best_score || (score == best_score && token < best)) {
            best = token;
            best_score = score;
        }
    };
    if (!bias_ && !penalties_ && !truncation_ && !constrained) {
        const int n = vocab_.size();
        if (with_noise) {
            // The likeliest token first: its score lets nearly all others fail the cheap bound.
            const auto top = static_cast<Token>(std::max_element(logits, logits + n) - logits);
            consider(top, logits[top]);
        }
        for (Token token = 0; token < n; ++token) {
            consider(token, logits[token]);
        }
    } else {
        fill(logits, constrained);
        const llama_token_data_array & array = candidates_->array;
        for (std::size_t i = 0; i < array.size; ++i) {
            consider(array.data[i].id, array.data[i].logit);
        }
    }
    if (best < 0 || !std::isfinite(best_score)) {
        no_finite_logits();
    }
    return best;
}

std::vector<TokenProbability> Sampler::distribution(const float * logits) {
    fill(logits, grammar_ != nullptr);
    const llama_token_data_array & array = candidates_->array;
    const llama_token_data * const begin = array.data;
    const llama_token_data * const end = begin + array.size;
    const llama_token_data & best = *std::max_element(begin, end, [](const auto & a, const auto & b) {
        return a.logit < b.logit || (a.logit == b.logit && a.id > b.id);
    });
    if (!std::isfinite(best.logit)) {
        no_finite_logits();
    }
    if (greedy()) {
        return {{best.id, 1.0f}};
    }
    std::vector<TokenProbability> result;
    result.reserve(array.size);
    double total = 0.0;
    for (const llama_token_data * at = begin; at != end; ++at) {
        const double weight = std::exp((at->logit - best.logit) / double(options_.temperature));
        total += weight;
        result.push_back({at->id, static_cast<float>(weight)});
    }
    for (TokenProbability & entry : result) {
        entry.probability = static_cast<float>(entry.probability / total);
    }
    return result;
}

}  // namespace dflash
