#include "dflash/ngram_map.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "dflash/error.h"
#include "file_io.h"

namespace dflash {
namespace {

constexpr std::uint64_t hash_base = 0x9e3779b97f4a7c15ull;  // odd, so powers never vanish mod 2^64
constexpr float rate_memory = 128.0f;                       // verdicts that a bucket remembers
constexpr int evidence_cap = 8;

// Finaliser of SplitMix64 (Steele, Lea, Flood 2014): spreads a polynomial hash over all bits.
std::uint64_t mix(std::uint64_t x) {
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9ull;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

std::uint32_t key_hash(std::uint64_t rolling) { return static_cast<std::uint32_t>(mix(rolling) >> 32); }

// Match lengths with like acceptance share a bucket: 1-3, 4, 5-7, 8-11, 12-15, 16-23, 24-31, 32 and more.
int bucket_of(int match_length) {
    constexpr int upper[] = {3, 4, 7, 11, 15, 23, 31};
    int bucket = 0;
    while (bucket < 7 && match_length > upper[bucket]) {
        ++bucket;
    }
    return bucket;
}

// Where the estimates start, before any verdict; worth `prior_weight` verdicts.
constexpr std::array<float, 8> prior = {0.30f, 0.40f, 0.50f, 0.65f, 0.75f, 0.85f, 0.90f, 0.95f};
constexpr float prior_weight = 4.0f;

std::vector<int> key_lengths(const NgramMapOptions & options) {
    std::vector<int> lengths;
    for (int n = options.size_n; n > options.size_n_min; n = std::max(options.size_n_min, n * 2 / 3)) {
        lengths.push_back(n);
    }
    lengths.push_back(options.size_n_min);
    return lengths;
}

void check(const NgramMapOptions & o) {
    if (o.size_n < 1 || o.size_n > 255) {
        throw std::invalid_argument("size_n is " + std::to_string(o.size_n) + "; use 1 to 255");
    }
    if (o.size_n_min < 1 || o.size_n_min > o.size_n) {
        throw std::invalid_argument("size_n_min is " + std::to_string(o.size_n_min) + "; use 1 to size_n (" +
                                    std::to_string(o.size_n) + ")");
    }
    if (o.size_m < 1 || o.size_m > 4096) {
        throw std::invalid_argument("size_m is " + std::to_string(o.size_m) + "; use 1 to 4096");
    }
    if (o.max_tokens < 4096 || o.max_tokens > (std::size_t(1) << 30)) {
        throw std::invalid_argument("max_tokens is " + std::to_string(o.max_tokens) + "; use 4096 to 2^30");
    }
}

}  // namespace

NgramMap::NgramMap(const NgramMapOptions & options) : options_(options) {
    check(options_);
    for (const int n : key_lengths(options_)) {
        Level level;
        level.n = n;
        for (int i = 0; i < n; ++i) {
            level.power *= hash_base;
        }
        levels_.push_back(std::move(level));
    }
    clear();
}

void NgramMap::clear() {
    ++revision_;
    context_.clear();
    corpus_.clear();
    segment_open_ = false;
    pending_ = {};
    rates_ = {};
    reset_tables();
}

void NgramMap::reset_tables() {
    spill_.clear();
    for (Level & level : levels_) {
        level.rolling = 0;
        level.n_keys = 0;
        level.slots.assign(64, Slot{});
    }
}

void NgramMap::extend(const Token * tokens, std::size_t n_tokens) {
    for (std::size_t i = 0; i < n_tokens; ++i) {
        if (tokens[i] < 0) {
            throw std::invalid_argument("token id " + std::to_string(tokens[i]) + " is negative");
        }
    }
    ++revision_;
    for (std::size_t i = 0; i < n_tokens; ++i) {
        append(tokens[i]);
    }
}

void NgramMap::append(Token token) {
    if (corpus_.size() >= options_.max_tokens) {
        forget_older_half();
    }
    if (!segment_open_) {
        begin_segment();
    }
    const auto position = static_cast<std::uint32_t>(corpus_.size());
    corpus_.push_back(token);
    // The token is what followed the keys that end just before it.
    for (Level & level : levels_) {
        if (context_.size() >= std::size_t(level.n)) {
            learn(level, token, position);
        }
    }
    context_.push_back(token);
    for (Level & level : levels_) {
        roll(level);
    }
}

void NgramMap::begin_segment() {
    const std::size_t k = std::min(context_.size(), std::size_t(options_.size_n));
    corpus_.push_back(-static_cast<Token>(k) - 1);
    corpus_.insert(corpus_.end(), context_.end() - k, context_.end());
    segment_open_ = true;
}

// Slides the level's window over the context's newest token.
void NgramMap::roll(Level & level) {
    const std::size_t size = context_.size();
    level.rolling = level.rolling * hash_base + std::uint64_t(context_[size - 1]) + 1;
    if (size > std::size_t(level.n)) {
        level.rolling -= (std::uint64_t(context_[size - 1 - level.n]) + 1) * level.power;
    }
    // The next append or proposal will want this slot.
    __builtin_prefetch(&level.slots[key_hash(level.rolling) & (level.slots.size() - 1)]);
}

void NgramMap::learn(Level & level, Token token, std::uint32_t position) {
    Slot & slot = find_or_insert(level, key_hash(level.rolling));
    if (slot.value.count == 0) {
        slot.value = {position, token, 1, 0, 0};
        ++level.n_keys;
        return;
    }
    if (Value * known = find_value(slot, token)) {
        known->position = position;
        if (++known->count == UINT16_MAX) {
            slot.value.count = std::max(1, slot.value.count / 2);
            if (slot.spill) {
                for (Value & value : spill_[slot.spill - 1]) {
                    value.count /= 2;
                }
            }
        }
        return;
    }
    if (!slot.spill) {
        spill_.emplace_back();
        slot.spill = static_cast<std::uint32_t>(spill_.size());
    }
    // A fifth value replaces the least seen one, the oldest of those.
    Value * weakest = &slot.value;
    for (Value & value : spill_[slot.spill - 1]) {
        if (value.count < weakest->count || (value.count == weakest->count && value.position < weakest->position)) {
            weakest = &value;
        }
    }
    *weakest = {position, token, 1, 0, 0};
}

NgramMap::Slot * NgramMap::find(Level & level, std::uint32_t hash) {
    const std::size_t mask = level.slots.size() - 1;
    for (std::size_t i = hash & mask;; i = (i + 1) & mask) {
        Slot & slot = level.slots[i];
        if (slot.value.count == 0) {
            return nullptr;
        }
        if (slot.hash == hash) {
            return &slot;
        }
    }
}

NgramMap::Slot & NgramMap::find_or_insert(Level & level, std::uint32_t hash) {
    if (2 * (level.n_keys + 1) > level.slots.size()) {
        grow(level);
    }
    const std::size_t mask = level.slots.size() - 1;
    std::size_t i = hash & mask;
    while (level.slots[i].value.count != 0 && level.slots[i].hash != hash) {
        i = (i + 1) & mask;
    }
    level.slots[i].hash = hash;
    return level.slots[i];
}

void NgramMap::grow(Level & level) {
    std::vector<Slot> old(level.slots.size() * 2);
    old.swap(level.slots);
    const std::size_t mask = level.slots.size() - 1;
    for (const Slot & slot : old) {
        if (slot.value.count != 0) {
            std::size_t i = slot.hash & mask;
            while (level.slots[i].value.count != 0) {
                i = (i + 1) & mask;
            }
            level.slots[i] = slot;
        }
    }
}

NgramMap::Value * NgramMap::find_value(Slot & slot, Token first) {
    if (slot.value.first == first) {
        return &slot.value;
    }
    if (slot.spill) {
        for (Value & value : spill_[slot.spill - 1]) {
            if (value.count != 0 && value.first == first) {
                return &value;
            }
        }
    }
    return nullptr;
}

// The value most often right: by count times acceptance, the latest of equals. `share`: its part of the counts.
const NgramMap::Value & NgramMap::best_value(const Slot & slot, float & share) const {
    const Value * best = nullptr;
    float best_score = -1.0f;
    float total = 0.0f;
    const auto consider = [&](const Value & value) {
        if (value.count == 0) {
            return;
        }
        total += value.count;
        const float trust = value.evidence ? value.acceptance / 255.0f : 1.0f;
        const float score = value.count * (0.1f + 0.9f * trust);
        if (score > best_score || (score == best_score && value.position > best->position)) {
            best = &value;
            best_score = score;
        }
    };
    consider(slot.value);
    if (slot.spill) {
        for (const Value & value : spill_[slot.spill - 1]) {
            consider(value);
        }
    }
    share = best->count / total;
    return *best;
}

// How many tokens before `position` in the corpus equal the context's last ones.
int NgramMap::match_length(std::uint32_t position) const {
    const int limit = static_cast<int>(std::min<std::size_t>({max_match, position, context_.size()}));
    int length = 0;
    while (length < limit && corpus_[position - 1 - length] == context_[context_.size() - 1 - length]) {
        ++length;
    }
    return length;
}

// P(a token predicted from such a match is accepted): the bucket's record, corrected by the value's own.
float NgramMap::acceptance(const Value & value, int match_length) const {
    const int bucket = bucket_of(match_length);
    const Rate & rate = rates_[bucket];
    const float general = (rate.accepted + prior_weight * prior[bucket]) / (rate.tried + prior_weight);
    const float own_weight = value.evidence;
    const float blended = (2.0f * general + own_weight * value.acceptance / 255.0f) / (2.0f + own_weight);
    return std::min(0.999f, std::max(0.01f, blended));
}

Proposal NgramMap::propose(int max_tokens) {
    ++revision_;
    pending_ = {};
    return look_up({}, max_tokens, pending_);
}

Proposal NgramMap::propose_after(const Tokens & more, int max_tokens) {
    Pending unused;
    const std::size_t size = context_.size();
    context_.insert(context_.end(), more.begin(), more.end());
    Proposal proposal = look_up(more, max_tokens, unused);
    context_.resize(size);
    return proposal;
}

// The last `more` tokens of the context are in neither the rolling hashes nor the corpus.
Proposal NgramMap::look_up(const Tokens & more, int max_tokens, Pending & pending) {
    Proposal proposal;
    const std::size_t wanted = static_cast<std::size_t>(std::max(0, std::min(max_tokens, options_.size_m)));
    for (std::size_t i = 0; i < levels_.size() && wanted > 0; ++i) {
        Level & level = levels_[i];
        if (context_.size() < std::size_t(level.n)) {
            continue;
        }
        const std::uint32_t hash = key_hash(more.empty() ? level.rolling : hash_of_last(level.n));
        const Slot * slot = find(level, hash);
        if (!slot) {
            continue;
        }
        float share = 0.0f;
        const Value & value = best_value(*slot, share);
        const int matched = match_length(value.position);
        if (matched < level.n) {
            continue;  // two keys with one 32-bit hash
        }
        proposal.match_length = matched;
        proposal.tokens.reserve(wanted);
        proposal.probabilities.reserve(wanted);
        const std::size_t end = corpus_.size();
        for (std::size_t at = value.position; proposal.tokens.size() < wanted; ++at) {
            // Past the corpus the text goes on with `more`, then with what was just proposed: a loop is continued
            // as a loop.
            Token token = -1;
            if (at < end) {
                token = corpus_[at];
            } else if (segment_open_) {
                token = at - end < more.size() ? more[at - end] : proposal.tokens[at - end - more.size()];
            }
            if (token < 0) {
                break;  // the end of a segment
            }
            const int offset = static_cast<int>(proposal.tokens.size());
            const float p = acceptance(value, matched + offset);
            proposal.tokens.push_back(token);
            proposal.probabilities.push_back(offset == 0 ? p * share : p);
        }
        pending = {static_cast<int>(i), hash, value.first, matched, static_cast<int>(proposal.tokens.size())};
        break;
    }
    return proposal;
}

void NgramMap::accept(int n_accepted, int n_offered) {
    const Pending pending = pending_;
    if (pending.level < 0) {
        return;
    }
    const int offered = n_offered < 0 ? pending.n_proposed : n_offered;
    if (n_accepted < 0 || n_accepted > offered || offered > pending.n_proposed) {
        throw std::invalid_argument("accept(" + std::to_string(n_accepted) + ") of " + std::to_string(offered) +
                                    " offered, " + std::to_string(pending.n_proposed) + " proposed");
    }
    pending_ = {};
    const int judged = std::min(offered, n_accepted + 1);  // what follows a rejected token is not judged
    for (int i = 0; i < judged; ++i) {
        Rate & rate = rates_[bucket_of(pending.match_length + i)];
        rate.accepted += i < n_accepted ? 1.0f : 0.0f;
        rate.tried += 1.0f;
        if (rate.tried > rate_memory) {
            rate.accepted *= rate_memory / rate.tried;
            rate.tried = rate_memory;
        }
    }
    Slot * slot = find(levels_[pending.level], pending.hash);
    Value * value = slot ? find_value(*slot, pending.first) : nullptr;
    if (!value || judged == 0) {
        return;
    }
    // Accepted share of the judged tokens: the maximum-likelihood acceptance of a geometric run.
    const float seen = 255.0f * n_accepted / judged;
    const float old = value->evidence ? value->acceptance : seen;
    value->acceptance = static_cast<std::uint8_t>(std::lround(old + (seen - old) * 0.4f));
    value->evidence = static_cast<std::uint8_t>(std::min(evidence_cap, value->evidence + 1));
}

void NgramMap::truncate(std::size_t length) {
    if (length >= context_.size()) {
        return;
    }
    ++revision_;
    context_.resize(length);
    segment_open_ = false;
    pending_ = {};
    rehash_context();
}

// The rolling hash of the context's last n tokens, from scratch.
std::uint64_t NgramMap::hash_of_last(int n) const {
    std::uint64_t rolling = 0;
    for (std::size_t i = context_.size() - std::min(context_.size(), std::size_t(n)); i < context_.size(); ++i) {
        rolling = rolling * hash_base + std::uint64_t(context_[i]) + 1;
    }
    return rolling;
}

void NgramMap::rehash_context() {
    for (Level & level : levels_) {
        level.rolling = hash_of_last(level.n);
    }
}

void NgramMap::assign(const Tokens & tokens) {
    const auto differs = std::mismatch(context_.begin(), context_.end(), tokens.begin(), tokens.end());
    const auto common = static_cast<std::size_t>(differs.first - context_.begin());
    truncate(common);
    extend(tokens.data() + common, tokens.size() - common);
}

// Rebuilds the tables from the corpus's newer half; what verification taught about kept keys is kept.
void NgramMap::forget_older_half() {
    const std::vector<Level> old_levels = levels_;
    std::vector<Spill> old_spill;
    old_spill.swap(spill_);
    Tokens newer(corpus_.begin() + corpus_.size() / 2, corpus_.end());
    Tokens context;
    context.swap(context_);
    const bool was_open = segment_open_;
    reset_tables();
    corpus_.clear();
    segment_open_ = false;
    for (std::size_t i = 0; i < newer.size(); ++i) {
        if (newer[i] >= 0) {
            append(newer[i]);
            continue;
        }
        // A new segment: its left side becomes the context, unlearned.
        const auto k = std::min(static_cast<std::size_t>(-newer[i] - 1), newer.size() - 1 - i);
        context_.assign(newer.begin() + i + 1, newer.begin() + i + 1 + k);
        segment_open_ = false;
        rehash_context();
        i += k;
    }
    context_ = std::move(context);
    segment_open_ = was_open;
    rehash_context();
    const auto keep = [](const Value & taught, Value * kept) {
        if (taught.evidence && kept) {
            kept->acceptance = taught.acceptance;
            kept->evidence = taught.evidence;
        }
    };
    for (std::size_t l = 0; l < levels_.size(); ++l) {
        for (const Slot & old : old_levels[l].slots) {
            Slot * slot = old.value.count ? find(levels_[l], old.hash) : nullptr;
            if (!slot) {
                continue;
            }
            keep(old.value, find_value(*slot, old.value.first));
            if (old.spill) {
                for (const Value & value : old_spill[old.spill - 1]) {
                    keep(value, value.count ? find_value(*slot, value.first) : nullptr);
                }
            }
        }
    }
}

void NgramMap::bind_tokenizer(std::uint64_t fingerprint) {
    if (tokenizer_ != 0 && tokenizer_ != fingerprint) {
        throw NgramMapError(
            "this k4v table was filled by a model with another tokenizer; "
            "use a table of its own for each tokenizer");
    }
    tokenizer_ = fingerprint;
}

std::size_t NgramMap::n_keys() const {
    std::size_t total = 0;
    for (const Level & level : levels_) {
        total += level.n_keys;
    }
    return total;
}

std::size_t NgramMap::memory_bytes() const {
    std::size_t total =
        (context_.capacity() + corpus_.capacity()) * sizeof(Token) + spill_.capacity() * sizeof(Spill);
    for (const Level & level : levels_) {
        total += level.slots.capacity() * sizeof(Slot);
    }
    return total;
}

// The file: magic, version, checksum of the rest, then tokenizer, options, corpus, context, rates, and what
// verification taught about single values. The tables are not stored: the corpus rebuilds them.
namespace {

constexpr char file_magic[8] = {'D', 'F', 'L', 'K', '4', 'V', 'T', 'B'};
constexpr std::uint32_t file_version = 1;

}  // namespace

void NgramMap::save(const std::string & path) const {
    ByteWriter body;
    body.put<std::uint64_t>(tokenizer_);
    body.put<std::int32_t>(options_.size_n);
    body.put<std::int32_t>(options_.size_m);
    body.put<std::int32_t>(options_.size_n_min);
    body.put<std::uint64_t>(options_.max_tokens);
    body.put_vector(corpus_);
    body.put_vector(context_);
    body.put<std::uint8_t>(segment_open_);
    for (const Rate & rate : rates_) {
        body.put(rate.accepted);
        body.put(rate.tried);
    }
    for (const Level & level : levels_) {
        std::vector<std::uint32_t> taught;  // [n][3] key hash, first token, acceptance and evidence
        const auto note = [&taught](std::uint32_t hash, const Value & value) {
            if (value.count && value.evidence) {
                taught.insert(taught.end(), {hash, std::uint32_t(value.first),
                                             std::uint32_t(value.acceptance) | std::uint32_t(value.evidence) << 8});
            }
        };
        for (const Slot & slot : level.slots) {
            note(slot.hash, slot.value);
            if (slot.value.count && slot.spill) {
                for (const Value & value : spill_[slot.spill - 1]) {
                    note(slot.hash, value);
                }
            }
        }
        body.put_vector(taught);
    }
    ByteWriter file;
    file.put_bytes(file_magic, sizeof(file_magic));
    file.put<std::uint32_t>(file_version);
    file.put<std::uint64_t>(checksum(body.bytes()));
    file.put_bytes(body.bytes().data(), body.bytes().size());
    try {
        write_file_atomically(path, file.bytes());
    } catch (const std::exception & error) {
        throw NgramMapError(std::string("cannot save the k4v table: ") + error.what());
    }
}

NgramMap NgramMap::load(const std::string & path) {
    const auto refuse = [&path](const std::string & why) -> NgramMapError {
        return NgramMapError(path + ": " + why);
    };
    std::string bytes;
    try {
        bytes = read_file(path);
    } catch (const std::exception & error) {
        throw NgramMapError(std::string("cannot load the k4v table: ") + error.what());
    }
    try {
        ByteReader file(bytes);
        char magic[sizeof(file_magic)];
        file.get_bytes(magic, sizeof(magic));
        if (std::memcmp(magic, file_magic, sizeof(magic)) != 0) {
            throw refuse("not a k4v table");
        }
        const auto version = file.get<std::uint32_t>();
        if (version != file_version) {
            throw refuse("k4v table of version " + std::to_string(version) + "; this build reads version " +
                         std::to_string(file_version) + ": delete it and let it fill again");
        }
        const auto expected = file.get<std::uint64_t>();
        if (checksum(bytes.substr(file.offset())) != expected) {
            throw refuse("the k4v table is damaged (wrong checksum); delete it and let it fill again");
        }
        const auto tokenizer = file.get<std::uint64_t>();
        NgramMapOptions options;
        options.size_n = file.get<std::int32_t>();
        options.size_m = file.get<std::int32_t>();
        options.size_n_min = file.get<std::int32_t>();
        options.max_tokens = file.get<std::uint64_t>();
        NgramMap map(options);
        map.tokenizer_ = tokenizer;
        const auto corpus = file.get_vector<Token>();
        const auto context = file.get_vector<Token>();
        const bool open = file.get<std::uint8_t>() != 0;
        if (corpus.size() > options.max_tokens + options.size_n + 2) {
            throw refuse("the k4v table is damaged (more tokens than it may hold)");
        }
        for (const Token token : context) {
            if (token < 0) {
                throw refuse("the k4v table is damaged (negative token id)");
            }
        }
        for (std::size_t i = 0; i < corpus.size(); ++i) {
            if (corpus[i] >= 0) {
                map.append(corpus[i]);
                continue;
            }
            const auto k = static_cast<std::size_t>(-(corpus[i] + 1));
            if (k > std::size_t(options.size_n) || k > corpus.size() - 1 - i) {
                throw refuse("the k4v table is damaged (bad segment)");
            }
            for (std::size_t j = 1; j <= k; ++j) {
                if (corpus[i + j] < 0) {
                    throw refuse("the k4v table is damaged (bad segment)");
                }
            }
            map.context_.assign(corpus.begin() + i + 1, corpus.begin() + i + 1 + k);
            map.segment_open_ = false;
            map.rehash_context();
            i += k;
        }
        // `open` is believed only where the corpus really ends as the context does.
        const std::size_t tail = std::min<std::size_t>({context.size(), map.corpus_.size(), max_match});
        const bool ends_alike = tail > 0 && std::equal(context.end() - std::min<std::size_t>(1, tail), context.end(),
                                                       map.corpus_.end() - std::min<std::size_t>(1, tail));
        map.context_ = context;
        map.segment_open_ = open && ends_alike;
        map.rehash_context();
        for (Rate & rate : map.rates_) {
            rate.accepted = file.get<float>();
            rate.tried = file.get<float>();
            if (!(rate.tried >= 0.0f && rate.tried <= rate_memory && rate.accepted >= 0.0f &&
                  rate.accepted <= rate.tried)) {
                throw refuse("the k4v table is damaged (impossible rate)");
            }
        }
        for (Level & level : map.levels_) {
            const auto taught = file.get_vector<std::uint32_t>();
            for (std::size_t i = 0; i + 2 < taught.size(); i += 3) {
                Slot * slot = map.find(level, taught[i]);
                if (Value * value = slot ? map.find_value(*slot, static_cast<Token>(taught[i + 1])) : nullptr) {
                    value->acceptance = taught[i + 2] & 0xff;
                    value->evidence = std::min<std::uint32_t>(evidence_cap, taught[i + 2] >> 8 & 0xff);
                }
            }
        }
        return map;
    } catch (const std::out_of_range &) {
        throw refuse("the k4v table is damaged (it ends too early); delete it and let it fill again");
    } catch (const std::invalid_argument & error) {
        throw refuse(std::string("the k4v table is damaged (") + error.what() + ")");
    }
}

}  // namespace dflash
