#include "dflash/vocab.h"

#include <stdexcept>

#include "file_io.h"
#include "llama.h"

namespace dflash {

Tokens Vocab::tokenize(const std::string & text, bool special) const {
    if (text.size() > std::size_t(INT32_MAX) / 2) {
        throw std::invalid_argument("the text has " + std::to_string(text.size()) + " bytes; 1 GiB is the limit");
    }
    const auto length = static_cast<std::int32_t>(text.size());
    Tokens tokens(text.size() + 8);
    try {
        std::int32_t n = llama_tokenize(vocab_, text.data(), length, tokens.data(),
                                        static_cast<std::int32_t>(tokens.size()), special, special);
        if (n < 0) {
            tokens.resize(static_cast<std::size_t>(-n));
            n = llama_tokenize(vocab_, text.data(), length, tokens.data(), -n, special, special);
        }
        tokens.resize(static_cast<std::size_t>(n < 0 ? 0 : n));
    } catch (const std::out_of_range &) {
        // llama.cpp looks a byte's token up and does not expect it to be missing.
        throw std::invalid_argument("the vocabulary has no token for a character of the text, nor for its bytes");
    }
    return tokens;
}

std::string Vocab::piece(Token token, bool special) const {
    if (token < 0 || token >= size()) {
        throw std::invalid_argument("token id " + std::to_string(token) + " is outside the vocabulary (0 to " +
                                    std::to_string(size() - 1) + ")");
    }
    std::string text(32, '\0');
    std::int32_t n = llama_token_to_piece(vocab_, token, text.data(), 32, 0, special);
    if (n < 0) {
        text.resize(static_cast<std::size_t>(-n));
        n = llama_token_to_piece(vocab_, token, text.data(), -n, 0, special);
    }
    text.resize(static_cast<std::size_t>(n));
    return text;
}

std::string Vocab::detokenize(const Tokens & tokens, bool special) const {
    check(tokens);
    std::string text;
    for (const Token token : tokens) {
        text += piece(token, special);
    }
    return text;
}

void Vocab::check(const Tokens & tokens) const {
    const int n = size();
    for (const Token token : tokens) {
        if (token < 0 || token >= n) {
            throw std::invalid_argument("token id " + std::to_string(token) + " is outside the vocabulary (0 to " +
                                        std::to_string(n - 1) + ")");
        }
    }
}

int Vocab::size() const { return llama_vocab_n_tokens(vocab_); }

bool Vocab::is_end(Token token) const { return llama_vocab_is_eog(vocab_, token); }

Token Vocab::bos() const { return llama_vocab_bos(vocab_); }

Token Vocab::eos() const { return llama_vocab_eos(vocab_); }

std::uint64_t Vocab::fingerprint() const {
    std::string all;
    const int n = size();
    for (Token token = 0; token < n; ++token) {
        all += llama_vocab_get_text(vocab_, token);
        all += '\0';
    }
    const std::uint64_t hash = checksum(all);
    return hash ? hash : 1;  // 0 means "no tokenizer yet" to a table
}

}  // namespace dflash
