// The ngram-map-k4v table: what followed when these tokens stood here before?
//
// A key is the last n tokens of the text, for a short ladder of lengths n from `size_n` down to `size_n_min`
// (12, 8, 5, 3 by default); the longest key that has been seen wins. A key holds up to 4 values. A value is a
// continuation of up to `size_m` tokens: the latest one that began with a given token, its count, and an
// acceptance estimate that falls and rises with what verification says.
//
// The table keeps two things apart. The context is the present text: `extend` and `truncate` edit it, `size`
// is its length. The corpus is everything ever appended; a value is a position in it. Truncating the context
// forgets nothing, so a table serves many generations, turns and prompts. When the corpus passes
// `max_tokens`, its older half is dropped.
//
// Cost: appending a token and proposing are each O(1) amortised in the length of the text (a handful of hash
// probes); truncating costs O(size_n).
//
// Threads: no method locks. Whoever shares a table between threads holds `mutex()` around each call, as
// Speculator and the Python binding do. `revision()` tells a user whether another one changed it meanwhile.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "dflash/token.h"

namespace dflash {

struct NgramMapOptions {
    int size_n = 12;                                // longest key, tokens
    int size_m = 48;                                // longest value, tokens
    int size_n_min = 3;                             // shortest key, tokens
    std::size_t max_tokens = std::size_t(1) << 20;  // corpus bound; about 90 bytes of memory a token
};

// A draft with the table's own estimate of it.
struct Proposal {
    Tokens tokens;
    // [tokens.size()] P(token i is accepted | all before it were)
    std::vector<float> probabilities;
    // Tokens of the context that stood before the value as well; 0: nothing was found.
    int match_length = 0;
};

class NgramMap {
public:
    static constexpr int max_match = 64;  // how far back a match is measured

    // Throws std::invalid_argument unless 1 <= size_n_min <= size_n <= 255 and 1 <= size_m <= 4096.
    explicit NgramMap(const NgramMapOptions & options = {});

    // Appends tokens (ids >= 0) to the context and learns them.
    // Throws std::invalid_argument on a negative id, before anything is appended.
    void extend(const Token * tokens, std::size_t n_tokens);
    void extend(const Tokens & tokens) { extend(tokens.data(), tokens.size()); }

    // Cuts the context to its first `length` tokens; no-op where it is not longer.
    void truncate(std::size_t length);

    // Makes the context equal to `tokens`: keeps the common prefix, truncates, extends.
    void assign(const Tokens & tokens);

    // Up to min(max_tokens, size_m) tokens expected after the context. Empty where no key is known.
    Proposal propose(int max_tokens);
    Proposal propose() { return propose(options_.size_m); }

    // The same for the context with `more` behind it, which stays as it is: what would be proposed if those tokens
    // were accepted. Takes no verdict.
    Proposal propose_after(const Tokens & more, int max_tokens);

    // The verdict on the last proposal: `n_accepted` of the first `n_offered` tokens were right.
    // n_offered < 0: all that were proposed. May be called before or after the context is extended.
    // Throws std::invalid_argument where n_accepted > n_offered; no-op without a proposal.
    void accept(int n_accepted, int n_offered = -1);

    // Forgets everything; the options stay.
    void clear();

    // Counts the calls that changed the table; equal revisions mean an unchanged table.
    std::uint64_t revision() const { return revision_; }
    std::mutex & mutex() const { return *mutex_; }

    std::size_t size() const { return context_.size(); }
    std::size_t n_keys() const;
    std::size_t n_corpus() const { return corpus_.size(); }
    std::size_t memory_bytes() const;
    const NgramMapOptions & options() const { return options_; }

    // The tokenizer that the ids belong to; 0 while the table has not met a model.
    std::uint64_t tokenizer() const { return tokenizer_; }
    // Ties the table to a tokenizer. Throws NgramMapError if it already belongs to another.
    void bind_tokenizer(std::uint64_t fingerprint);

    // Writes the table beside `path`, then renames: a reader sees the old file or the new one.
    // Throws NgramMapError when it cannot be written.
    void save(const std::string & path) const;
    // Throws NgramMapError: missing, not a table, another version, damaged.
    static NgramMap load(const std::string & path);

private:
    static constexpr int max_values = 4;
    static constexpr int n_buckets = 8;

    struct Value {
        std::uint32_t position = 0;   // in the corpus, of the first token
        Token first = -1;             // that token: tells values apart without touching the corpus
        std::uint16_t count = 0;      // times seen; 0: unused
        std::uint8_t acceptance = 0;  // estimate of P(next token accepted), in 1/255
        std::uint8_t evidence = 0;    // verdicts behind it
    };
    // One key. Most have one value, so the others lie in `spill_`.
    struct Slot {
        std::uint32_t hash = 0;
        std::uint32_t spill = 0;  // index into spill_ plus 1; 0: none
        Value value;              // count 0: free slot
    };
    using Spill = std::array<Value, max_values - 1>;

    // The keys of one length: an open-addressing table with linear probing, at most half full.
    struct Level {
        int n = 0;
        std::uint64_t power = 1;    // base^n, for the rolling hash
        std::uint64_t rolling = 0;  // hash of the last n tokens of the context
        std::size_t n_keys = 0;
        std::vector<Slot> slots;
    };
    // Recency-weighted verdicts on tokens predicted from a match of similar length.
    struct Rate {
        float accepted = 0;
        float tried = 0;
    };
    struct Pending {
        int level = -1;  // -1: nothing to judge
        std::uint32_t hash = 0;
        Token first = -1;
        int match_length = 0;
        int n_proposed = 0;
    };

    void append(Token token);
    void begin_segment();
    void learn(Level & level, Token token, std::uint32_t position);
    Proposal look_up(const Tokens & more, int max_tokens, Pending & pending);
    Slot & find_or_insert(Level & level, std::uint32_t hash);
    Slot * find(Level & level, std::uint32_t hash);
    void grow(Level & level);
    Value * find_value(Slot & slot, Token first);
    const Value & best_value(const Slot & slot, float & share) const;
    float acceptance(const Value & value, int match_length) const;
    int match_length(std::uint32_t position) const;
    void roll(Level & level);
    std::uint64_t hash_of_last(int n) const;
    void rehash_context();
    void forget_older_half();
    void reset_tables();

    NgramMapOptions options_;
    std::uint64_t tokenizer_ = 0;
    Tokens context_;
    // A negative entry -(k+1) begins a segment: the next k tokens only give its first keys their left side.
    Tokens corpus_;
    bool segment_open_ = false;  // the corpus ends with the context's own last tokens
    std::vector<Level> levels_;  // longest key first
    std::vector<Spill> spill_;
    std::array<Rate, n_buckets> rates_;
    Pending pending_;
    std::uint64_t revision_ = 0;
    std::unique_ptr<std::mutex> mutex_ = std::make_unique<std::mutex>();  // movable, unlike a plain one
};

}  // namespace dflash
