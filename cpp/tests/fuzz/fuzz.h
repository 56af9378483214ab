// What the fuzz targets share: a scratch file, and a reader that makes small numbers out of any bytes.
//
// A target is one file with LLVMFuzzerTestOneInput. libFuzzer drives it under clang; elsewhere replay.cpp runs the
// tracked corpus through it, so that a crash that was mended stays mended.

#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>

namespace fuzz {

// One file of this process, written anew for each input.
inline std::string write_scratch(const void * data, std::size_t size) {
    static const std::string path =
        (std::filesystem::temp_directory_path() / ("dflash-fuzz-" + std::to_string(::getpid()))).string();
    static const struct Remover {
        ~Remover() { std::filesystem::remove(path); }
    } remover;
    std::FILE * file = std::fopen(path.c_str(), "wb");
    if (!file || (size > 0 && std::fwrite(data, 1, size, file) != size)) {
        std::abort();
    }
    std::fclose(file);
    return path;
}

// Takes values off the front; zeros once the bytes are used up.
class Bytes {
public:
    Bytes(const std::uint8_t * data, std::size_t size) : data_(data), left_(size) {}

    template <typename T>
    T take() {
        T value{};
        const std::size_t n = left_ < sizeof(T) ? left_ : sizeof(T);
        std::memcpy(&value, data_, n);
        data_ += n;
        left_ -= n;
        return value;
    }
    // In [low, high].
    int between(int low, int high) { return low + take<std::uint8_t>() % (high - low + 1); }
    bool empty() const { return left_ == 0; }

private:
    const std::uint8_t * data_;
    std::size_t left_;
};

}  // namespace fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t * data, std::size_t size);
