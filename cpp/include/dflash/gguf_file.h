// The header of a GGUF file: metadata and tensor table, read with every length checked against the file's
// size. llama.cpp aborts the process on some damaged headers; this reader throws instead, so a file goes
// through here first. Reads no weights. Value type; safe from any thread once built.
// Format: GGUF specification, versions 2 and 3 (little endian).

#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

namespace dflash {

struct GgufTensor {
    std::string name;
    std::vector<std::int64_t> shape;  // ggml order: the fastest dimension first
    std::string type;                 // "F32", "Q4_1", ...
    std::uint64_t bytes = 0;
};

// An array: its length and, up to GgufFile::max_array_kept elements, its values.
struct GgufArray {
    std::uint64_t length = 0;
    std::vector<std::variant<std::int64_t, double, std::string>> values;
};

using GgufValue = std::variant<std::int64_t, double, bool, std::string, GgufArray>;

class GgufFile {
public:
    static constexpr std::uint64_t max_array_kept = 256;

    // Reads and checks the header of `path`. Throws ModelError: missing, a directory, empty, not a GGUF,
    // damaged, or shorter than its tensor table says.
    explicit GgufFile(const std::string & path);

    const std::string & path() const { return path_; }
    std::uint64_t file_bytes() const { return file_bytes_; }
    std::uint64_t tensor_bytes() const;
    const std::map<std::string, GgufValue> & metadata() const { return metadata_; }
    const std::vector<GgufTensor> & tensors() const { return tensors_; }

    // The value of `key`, or `otherwise` where it is absent or of another type.
    std::string text(const std::string & key, const std::string & otherwise = "") const;
    std::int64_t integer(const std::string & key, std::int64_t otherwise = 0) const;
    double real(const std::string & key, double otherwise = 0.0) const;
    bool flag(const std::string & key, bool otherwise = false) const;

    std::string architecture() const { return text("general.architecture"); }
    // `name` under the architecture's prefix, as in "llama.block_count".
    std::int64_t arch_integer(const std::string & name, std::int64_t otherwise = 0) const;
    std::uint64_t vocab_size() const;

    // Throws ModelError unless the file is a whole causal language model: says what it is instead
    // (vocabulary only, embedding model, encoder, drafter, no tokenizer).
    void require_language_model() const;

    // Throws ModelError where a size is out of range or contradicts another; a drafter's file too goes through here.
    void require_sane_sizes() const;

private:
    std::string path_;
    std::uint64_t file_bytes_ = 0;
    std::map<std::string, GgufValue> metadata_;
    std::vector<GgufTensor> tensors_;
};

}  // namespace dflash
