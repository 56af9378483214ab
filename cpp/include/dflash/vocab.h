// A model's vocabulary: text to token ids and back. A view; the model owns it. Safe from any thread.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "dflash/token.h"

struct llama_vocab;

namespace dflash {

class Vocab {
public:
    explicit Vocab(const llama_vocab * vocab) : vocab_(vocab) {}

    // special: parse control tokens in the text and add the model's BOS where it wants one.
    Tokens tokenize(const std::string & text, bool special) const;
    // The bytes of one token; control tokens are empty unless `special`. Throws std::invalid_argument on an
    // id outside the vocabulary.
    std::string piece(Token token, bool special) const;
    std::string detokenize(const Tokens & tokens, bool special) const;

    // Throws std::invalid_argument naming the first id outside the vocabulary.
    void check(const Tokens & tokens) const;

    int size() const;
    bool is_end(Token token) const;  // EOS, EOT and their like
    Token bos() const;
    Token eos() const;
    // Identifies the tokenizer: a hash of every token's text, in order.
    std::uint64_t fingerprint() const;

    const llama_vocab * raw() const { return vocab_; }

private:
    const llama_vocab * vocab_;
};

}  // namespace dflash
