// The GGUF reader against files built here, whole and damaged.

#include "dflash/gguf_file.h"

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "check.h"
#include "dflash/error.h"

using namespace dflash;

namespace {

const std::string path = (std::filesystem::temp_directory_path() / "dflash-test-header.gguf").string();

template <typename T>
void put(std::string & out, T value) {
    out.append(reinterpret_cast<const char *>(&value), sizeof(T));
}

void put_string(std::string & out, const std::string & text) {
    put<std::uint64_t>(out, text.size());
    out += text;
}

// A GGUF with three metadata values and one F32 tensor of shape [4, 2].
std::string small_gguf() {
    std::string file = "GGUF";
    put<std::uint32_t>(file, 3);
    put<std::uint64_t>(file, 1);
    put<std::uint64_t>(file, 3);
    put_string(file, "general.architecture");
    put<std::uint32_t>(file, 8);
    put_string(file, "llama");
    put_string(file, "llama.block_count");
    put<std::uint32_t>(file, 4);
    put<std::uint32_t>(file, 7);
    put_string(file, "tokenizer.ggml.tokens");
    put<std::uint32_t>(file, 9);
    put<std::uint32_t>(file, 8);
    put<std::uint64_t>(file, 2);
    put_string(file, "a");
    put_string(file, "b");
    put_string(file, "token_embd.weight");
    put<std::uint32_t>(file, 2);
    put<std::int64_t>(file, 4);
    put<std::int64_t>(file, 2);
    put<std::uint32_t>(file, 0);
    put<std::uint64_t>(file, 0);
    file.resize((file.size() + 31) / 32 * 32);
    file.append(32, '\0');
    return file;
}

void write(const std::string & bytes) { std::ofstream(path, std::ios::binary) << bytes; }

}  // namespace

TEST(header_is_read) {
    write(small_gguf());
    const GgufFile file(path);
    CHECK(file.architecture() == "llama");
    CHECK(file.arch_integer("block_count") == 7);
    CHECK(file.arch_integer("absent", -1) == -1);
    CHECK(file.vocab_size() == 2);
    CHECK(file.tensors().size() == 1);
    CHECK(file.tensors()[0].bytes == 32);
    CHECK(file.tensors()[0].type == "F32");
    file.require_language_model();
}

TEST(every_truncation_is_refused) {
    const std::string good = small_gguf();
    for (std::size_t length = 0; length < good.size(); ++length) {
        write(good.substr(0, length));
        CHECK_THROWS(ModelError, GgufFile(path));
    }
}

TEST(no_changed_byte_crashes_the_reader) {
    const std::string good = small_gguf();
    for (std::size_t i = 0; i < good.size(); ++i) {
        for (const int change : {0x01, 0x80, 0xff}) {
            std::string bad = good;
            bad[i] = static_cast<char>(bad[i] ^ change);
            write(bad);
            try {
                GgufFile file(path);
                file.require_language_model();
            } catch (const ModelError &) {
            }
        }
    }
    std::filesystem::remove(path);
}

TEST(a_token_that_stands_twice_is_refused) {
    std::string twice = small_gguf();
    twice[twice.find("token_embd") - 9] = 'a';  // before the next string's length
    write(twice);
    CHECK_THROWS(ModelError, GgufFile(path));
    std::filesystem::remove(path);
}

TEST(what_is_no_model_is_named) {
    CHECK_THROWS(ModelError, GgufFile("/no/such/file.gguf"));
    CHECK_THROWS(ModelError, GgufFile("/tmp"));
    write("this is not a model, only a sentence long enough to have a header");
    CHECK_THROWS(ModelError, GgufFile(path));
    std::filesystem::remove(path);
}

int main() { return check::run(); }
