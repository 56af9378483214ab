#include "dflash/gguf_file.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <set>
#include <unordered_set>

#include "dflash/error.h"
#include "ggml.h"

namespace dflash {
namespace {

const char * const tokens_key = "tokenizer.ggml.tokens";

// GGUF's value types, by their numbers in the file.
enum ValueType : std::uint32_t {
    type_u8,
    type_i8,
    type_u16,
    type_i16,
    type_u32,
    type_i32,
    type_f32,
    type_bool,
    type_string,
    type_array,
    type_u64,
    type_i64,
    type_f64,
};

// Reads little-endian values and never past the end of the file.
class Reader {
public:
    Reader(const std::string & path, std::uint64_t file_bytes)
        : path_(path), stream_(path, std::ios::binary), left_(file_bytes), size_(file_bytes) {
        if (!stream_) {
            throw ModelError("cannot open " + path + ": check that you may read it");
        }
    }

    [[noreturn]] void damaged(const std::string & what) const {
        throw ModelError(path_ + " is damaged: " + what + "; download or convert it again");
    }

    template <typename T>
    T value() {
        T result;
        read(&result, sizeof(T));
        return result;
    }

    std::string string(const char * what) {
        const auto length = value<std::uint64_t>();
        if (length > left_) {
            damaged(std::string(what) + " runs past the end of the file");
        }
        std::string text(length, '\0');
        read(text.data(), length);
        return text;
    }

    void skip(std::uint64_t bytes) {
        if (bytes > left_) {
            damaged("the metadata runs past the end of the file");
        }
        stream_.seekg(static_cast<std::streamoff>(bytes), std::ios::cur);
        left_ -= bytes;
    }

    // A count of items that take at least `least` bytes each; refused if they cannot fit.
    std::uint64_t count(std::uint64_t least, const char * what) {
        const auto n = value<std::uint64_t>();
        if (n > left_ / least) {
            damaged("it claims " + std::to_string(n) + " " + what);
        }
        return n;
    }

    std::uint64_t left() const { return left_; }
    std::uint64_t offset() const { return size_ - left_; }

private:
    void read(void * into, std::uint64_t bytes) {
        if (bytes > left_ || !stream_.read(static_cast<char *>(into), static_cast<std::streamsize>(bytes))) {
            damaged("it ends inside its header");
        }
        left_ -= bytes;
    }

    std::string path_;
    std::ifstream stream_;
    std::uint64_t left_;
    std::uint64_t size_;
};

std::uint64_t fixed_size(std::uint32_t type) {
    switch (type) {
        case type_u8:
        case type_i8:
        case type_bool: return 1;
        case type_u16:
        case type_i16: return 2;
        case type_u32:
        case type_i32:
        case type_f32: return 4;
        case type_u64:
        case type_i64:
        case type_f64: return 8;
        default: return 0;
    }
}

GgufValue read_scalar(Reader & in, std::uint32_t type) {
    switch (type) {
        case type_u8: return std::int64_t(in.value<std::uint8_t>());
        case type_i8: return std::int64_t(in.value<std::int8_t>());
        case type_u16: return std::int64_t(in.value<std::uint16_t>());
        case type_i16: return std::int64_t(in.value<std::int16_t>());
        case type_u32: return std::int64_t(in.value<std::uint32_t>());
        case type_i32: return std::int64_t(in.value<std::int32_t>());
        case type_u64: return static_cast<std::int64_t>(in.value<std::uint64_t>());
        case type_i64: return in.value<std::int64_t>();
        case type_f32: return double(in.value<float>());
        case type_f64: return in.value<double>();
        case type_bool: return in.value<std::uint8_t>() != 0;
        case type_string: return in.string("a metadata string");
        default: in.damaged("metadata of unknown type " + std::to_string(type));
    }
}

// `distinct`: strings of which none but the empty one may stand twice.
GgufValue read_array(Reader & in, bool distinct) {
    const auto type = in.value<std::uint32_t>();
    const std::uint64_t size = fixed_size(type);
    if (size == 0 && type != type_string) {
        in.damaged("an array of unknown type " + std::to_string(type));
    }
    GgufArray array;
    array.length = in.count(size ? size : sizeof(std::uint64_t), "array elements");
    const std::uint64_t kept = std::min(array.length, GgufFile::max_array_kept);
    std::unordered_set<std::string> seen;
    const auto note = [&](const std::string & text) {
        if (distinct && !text.empty() && !seen.insert(text).second) {
            in.damaged("'" + text + "' stands twice in the vocabulary");
        }
    };
    for (std::uint64_t i = 0; i < kept; ++i) {
        const GgufValue value = read_scalar(in, type);
        if (const auto * text = std::get_if<std::string>(&value)) {
            note(*text);
            array.values.emplace_back(*text);
        } else if (const auto * number = std::get_if<double>(&value)) {
            array.values.emplace_back(*number);
        } else if (const auto * truth = std::get_if<bool>(&value)) {
            array.values.emplace_back(std::int64_t(*truth));
        } else {
            array.values.emplace_back(std::get<std::int64_t>(value));
        }
    }
    if (size) {
        in.skip((array.length - kept) * size);
    } else {
        for (std::uint64_t i = kept; i < array.length; ++i) {
            if (distinct) {
                note(in.string("a token"));
            } else {
                in.skip(in.value<std::uint64_t>());
            }
        }
    }
    return array;
}

// Bytes of a tensor, or damaged() where its type or shape cannot be.
std::uint64_t tensor_size(Reader & in, const GgufTensor & tensor, std::uint32_t type) {
    if (type >= GGML_TYPE_COUNT || ggml_blck_size(ggml_type(type)) == 0) {
        in.damaged("tensor '" + tensor.name + "' has unknown type " + std::to_string(type) +
                   " (a newer file than this build knows?)");
    }
    std::uint64_t elements = 1;
    for (const std::int64_t extent : tensor.shape) {
        if (extent <= 0 || elements > std::uint64_t(std::numeric_limits<std::int64_t>::max()) / extent) {
            in.damaged("tensor '" + tensor.name + "' has an impossible shape");
        }
        elements *= extent;
    }
    const auto block = std::uint64_t(ggml_blck_size(ggml_type(type)));
    if (tensor.shape.empty() || tensor.shape[0] % block != 0) {
        in.damaged("tensor '" + tensor.name + "' has rows that its type cannot hold");
    }
    return elements / block * ggml_type_size(ggml_type(type));
}

template <typename T>
T value_or(const std::map<std::string, GgufValue> & metadata, const std::string & key, const T & otherwise) {
    const auto found = metadata.find(key);
    const T * value = found == metadata.end() ? nullptr : std::get_if<T>(&found->second);
    return value ? *value : otherwise;
}

bool ends_with(const std::string & text, const std::string & end) {
    return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

}  // namespace

GgufFile::GgufFile(const std::string & path) : path_(path) {
    namespace fs = std::filesystem;
    std::error_code error;
    const fs::file_status status = fs::status(path, error);
    if (!fs::exists(status)) {
        throw ModelError("no such file: " + path);
    }
    if (fs::is_directory(status)) {
        throw ModelError(path + " is a directory; name the .gguf file inside it");
    }
    file_bytes_ = fs::file_size(path, error);
    if (error) {
        throw ModelError("cannot read " + path + ": " + error.message());
    }
    if (file_bytes_ == 0) {
        throw ModelError(path + " is empty; download or convert it again");
    }
    Reader in(path, file_bytes_);
    if (file_bytes_ < 24 || in.value<std::uint32_t>() != 0x46554747u) {
        throw ModelError(path + " is not a GGUF file (it does not begin with 'GGUF')");
    }
    const auto version = in.value<std::uint32_t>();
    if (version < 2 || version > 3) {
        throw ModelError(path + " has GGUF version " + std::to_string(version) +
                         "; this build reads versions 2 and 3: convert it again");
    }
    const std::uint64_t n_tensors = in.count(24, "tensors");
    const std::uint64_t n_values = in.count(12, "metadata values");
    for (std::uint64_t i = 0; i < n_values; ++i) {
        const std::string key = in.string("a metadata key");
        if (key.empty()) {
            in.damaged("a metadata key is empty");
        }
        const auto type = in.value<std::uint32_t>();
        // llama.cpp asserts that tokens are distinct.
        GgufValue value = type == type_array ? read_array(in, key == tokens_key) : read_scalar(in, type);
        if (!metadata_.emplace(key, std::move(value)).second) {
            in.damaged("metadata key '" + key + "' stands twice");
        }
    }
    std::uint64_t alignment = 32;
    if (metadata_.count("general.alignment")) {
        const std::int64_t given = integer("general.alignment");
        if (given <= 0 || given > (1 << 20) || (given & (given - 1)) != 0) {
            in.damaged("its alignment is " + std::to_string(given));
        }
        alignment = std::uint64_t(given);
    }
    std::set<std::string> names;
    std::uint64_t data_end = 0;  // from the start of the data section
    for (std::uint64_t i = 0; i < n_tensors; ++i) {
        GgufTensor tensor;
        tensor.name = in.string("a tensor name");
        if (tensor.name.empty() || tensor.name.size() >= GGML_MAX_NAME || !names.insert(tensor.name).second) {
            in.damaged("tensor name '" + tensor.name + "' is empty, too long or stands twice");
        }
        const auto n_dims = in.value<std::uint32_t>();
        if (n_dims == 0 || n_dims > GGML_MAX_DIMS) {
            in.damaged("tensor '" + tensor.name + "' has " + std::to_string(n_dims) + " dimensions");
        }
        for (std::uint32_t d = 0; d < n_dims; ++d) {
            tensor.shape.push_back(in.value<std::int64_t>());
        }
        const auto type = in.value<std::uint32_t>();
        const auto offset = in.value<std::uint64_t>();
        tensor.bytes = tensor_size(in, tensor, type);
        tensor.type = ggml_type_name(ggml_type(type));
        std::transform(tensor.type.begin(), tensor.type.end(), tensor.type.begin(), ::toupper);
        if (offset % alignment != 0 || offset > file_bytes_ || tensor.bytes > file_bytes_) {
            throw ModelError(path + " is truncated or damaged: tensor '" + tensor.name +
                             "' lies outside the file; download it again");
        }
        data_end = std::max(data_end, offset + tensor.bytes);
        tensors_.push_back(std::move(tensor));
    }
    const std::uint64_t data_begin = (in.offset() + alignment - 1) / alignment * alignment;
    if (n_tensors > 0 && data_begin + data_end > file_bytes_) {
        throw ModelError(path + " is truncated: its tensors need " + std::to_string(data_begin + data_end) +
                         " bytes, the file has " + std::to_string(file_bytes_) + "; download it again");
    }
}

std::uint64_t GgufFile::tensor_bytes() const {
    std::uint64_t total = 0;
    for (const GgufTensor & tensor : tensors_) {
        total += tensor.bytes;
    }
    return total;
}

std::string GgufFile::text(const std::string & key, const std::string & otherwise) const {
    return value_or(metadata_, key, otherwise);
}

std::int64_t GgufFile::integer(const std::string & key, std::int64_t otherwise) const {
    return value_or(metadata_, key, otherwise);
}

double GgufFile::real(const std::string & key, double otherwise) const { return value_or(metadata_, key, otherwise); }

bool GgufFile::flag(const std::string & key, bool otherwise) const { return value_or(metadata_, key, otherwise); }

std::int64_t GgufFile::arch_integer(const std::string & name, std::int64_t otherwise) const {
    return integer(architecture() + "." + name, otherwise);
}

std::uint64_t GgufFile::vocab_size() const {
    const auto found = metadata_.find(tokens_key);
    const auto * tokens = found == metadata_.end() ? nullptr : std::get_if<GgufArray>(&found->second);
    return tokens ? tokens->length : 0;
}

void GgufFile::require_language_model() const {
    const std::string arch = architecture();
    if (arch.empty()) {
        throw ModelError(path_ + " names no architecture (general.architecture); convert it again");
    }
    if (text("general.type", "model") != "model") {
        throw ModelError(path_ + " is a GGUF of type '" + text("general.type") + "', not a model");
    }
    if (arch == "dflash" || arch == "eagle3") {
        throw ModelError(path_ + " is a drafter (architecture " + arch +
                         "); give it as drafter=, and a language model as model=");
    }
    // The first file of a split model may hold metadata alone.
    if (tensors_.empty() && integer("split.count") < 2) {
        throw ModelError(path_ + " holds a vocabulary only, no weights; use the whole model's file");
    }
    // Pooling 1..4 is mean, cls, last or rank: such a model was trained to embed or rank, not to write.
    const bool embeds = arch_integer("pooling_type") > 0 || !flag(arch + ".attention.causal", true) ||
                        ends_with(arch, "bert") || arch.find("bert-") != std::string::npos ||
                        ends_with(arch, "encoder");
    if (embeds) {
        throw ModelError(path_ + " is an embedding model (architecture " + arch + "); it cannot generate text");
    }
    if (vocab_size() == 0) {
        throw ModelError(path_ + " has no tokenizer (tokenizer.ggml.tokens); convert it again");
    }
    require_sane_sizes();
}

// Sizes that llama.cpp asserts on: each is in range, and agrees with the tensors where that is simple to say.
void GgufFile::require_sane_sizes() const {
    const auto refuse = [this](const std::string & key, auto value) {
        throw ModelError(path_ + " is damaged: " + key + " is " + std::to_string(value) +
                         "; download or convert it again");
    };
    const auto within = [this, &refuse](const std::string & name, std::int64_t least, std::int64_t most) {
        const std::string key = architecture() + "." + name;
        const std::int64_t value = integer(key, least);  // absent, or an array with a value for each layer
        if (value < least || value > most) {
            refuse(key, value);
        }
        return value;
    };
    within("block_count", 1, 512);
    within("context_length", 1, std::int64_t(1) << 31);
    within("feed_forward_length", 0, std::int64_t(1) << 24);
    within("vocab_size", 1, std::int64_t(1) << 24);
    within("expert_count", 0, 1 << 12);
    within("expert_used_count", 0, 1 << 12);
    const std::int64_t hidden = within("embedding_length", 1, std::int64_t(1) << 24);
    // A model without attention (Mamba, RWKV) has no heads.
    const bool recurrent =
        metadata_.count(architecture() + ".ssm.state_size") + metadata_.count(architecture() + ".wkv.head_size") > 0;
    const std::int64_t heads = within("attention.head_count", recurrent ? 0 : 1, 1 << 16);
    const std::int64_t kv_heads = integer(architecture() + ".attention.head_count_kv", heads);
    if (kv_heads < 0 || (kv_heads > 0 && heads % kv_heads != 0)) {
        refuse(architecture() + ".attention.head_count_kv", kv_heads);
    }
    if (metadata_.count(architecture() + ".attention.key_length") == 0 && heads > 0 && hidden % heads != 0) {
        refuse(architecture() + ".attention.head_count", heads);
    }
    const std::int64_t head_size = arch_integer("attention.key_length", heads > 0 ? hidden / heads : 0);
    const std::int64_t rotated = arch_integer("rope.dimension_count", 0);
    if (rotated < 0 || (head_size > 0 && rotated > head_size) || rotated % 2 != 0) {
        refuse(architecture() + ".rope.dimension_count", rotated);
    }
    for (const char * name : {"attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"}) {
        const double epsilon = real(architecture() + "." + name);
        if (!(epsilon >= 0.0 && epsilon <= 1.0)) {
            refuse(architecture() + "." + name, epsilon);
        }
    }
    const bool hidden_given = metadata_.count(architecture() + ".embedding_length") > 0;
    for (const GgufTensor & tensor : tensors_) {
        if (hidden_given && tensor.name == "token_embd.weight" && tensor.shape[0] != hidden) {
            refuse(architecture() + ".embedding_length", hidden);
        }
    }
    for (const char * list : {"tokenizer.ggml.scores", "tokenizer.ggml.token_type"}) {
        const auto found = metadata_.find(list);
        const auto * array = found == metadata_.end() ? nullptr : std::get_if<GgufArray>(&found->second);
        if (array && array->length != vocab_size()) {
            refuse(std::string("the length of ") + list, std::int64_t(array->length));
        }
    }
}

}  // namespace dflash
