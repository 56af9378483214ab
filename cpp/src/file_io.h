// Bytes to and from files: whole-file reads, writes that are never seen half done, and flat little-endian
// records with every length checked. Private to the core; free functions are safe from any thread.

#pragma once

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

namespace dflash {

// Throws std::runtime_error naming the path and the system's reason.
std::string read_file(const std::string & path);

// Writes beside `path`, syncs, renames. Throws std::runtime_error; the old file then still stands.
void write_file_atomically(const std::string & path, const std::string & bytes);

// FNV-1a over 8-byte words, finished by a mixer: finds damage, defends against no one.
std::uint64_t checksum(const std::string & bytes);

class ByteWriter {
public:
    template <typename T>
    void put(const T & value) {
        put_bytes(&value, sizeof(T));
    }
    template <typename T>
    void put_vector(const std::vector<T> & values) {
        put<std::uint64_t>(values.size());
        put_bytes(values.data(), values.size() * sizeof(T));
    }
    void put_bytes(const void * data, std::size_t size) { bytes_.append(static_cast<const char *>(data), size); }
    const std::string & bytes() const { return bytes_; }

private:
    std::string bytes_;
};

// Throws std::out_of_range where the bytes end too early.
class ByteReader {
public:
    explicit ByteReader(const std::string & bytes) : bytes_(bytes) {}

    template <typename T>
    T get() {
        T value;
        get_bytes(&value, sizeof(T));
        return value;
    }
    template <typename T>
    std::vector<T> get_vector() {
        const auto length = get<std::uint64_t>();
        if (length > (bytes_.size() - offset_) / sizeof(T)) {
            throw std::out_of_range("vector");
        }
        std::vector<T> values(length);
        get_bytes(values.data(), length * sizeof(T));
        return values;
    }
    void get_bytes(void * into, std::size_t size) {
        if (size > bytes_.size() - offset_) {
            throw std::out_of_range("bytes");
        }
        if (size > 0) {
            std::memcpy(into, bytes_.data() + offset_, size);
        }
        offset_ += size;
    }
    std::size_t offset() const { return offset_; }

private:
    const std::string & bytes_;
    std::size_t offset_ = 0;
};

}  // namespace dflash
