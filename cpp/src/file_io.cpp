#include "file_io.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace dflash {

std::string read_file(const std::string & path) {
    if (std::filesystem::is_directory(path)) {
        throw std::runtime_error(path + " is a directory");
    }
    std::ifstream in(path, std::ios::binary);
    std::ostringstream bytes;
    if (!in || !(bytes << in.rdbuf())) {
        // An empty file sets failbit as well; that is no error of reading.
        if (std::filesystem::exists(path) && std::filesystem::file_size(path) == 0) {
            return {};
        }
        throw std::runtime_error(path + ": " + std::strerror(errno ? errno : ENOENT));
    }
    return bytes.str();
}

void write_file_atomically(const std::string & path, const std::string & bytes) {
    const std::string beside = path + ".partial." + std::to_string(::getpid());
    const auto fail = [&beside](const std::string & where) {
        const std::string reason = std::strerror(errno);
        ::unlink(beside.c_str());
        throw std::runtime_error(where + ": " + reason);
    };
    const int fd = ::open(beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0) {
        fail(path);
    }
    std::size_t done = 0;
    while (done < bytes.size()) {
        const ssize_t n = ::write(fd, bytes.data() + done, bytes.size() - done);
        if (n < 0 && errno != EINTR) {
            ::close(fd);
            fail(path);
        }
        done += n > 0 ? static_cast<std::size_t>(n) : 0;
    }
    if (::fsync(fd) != 0 || ::close(fd) != 0 || ::rename(beside.c_str(), path.c_str()) != 0) {
        fail(path);
    }
}

std::uint64_t checksum(const std::string & bytes) {
    std::uint64_t hash = 0xcbf29ce484222325ull;
    std::size_t i = 0;
    for (; i + 8 <= bytes.size(); i += 8) {
        std::uint64_t word;
        std::memcpy(&word, bytes.data() + i, 8);
        hash = (hash ^ word) * 0x100000001b3ull;
        hash ^= hash >> 29;
    }
    for (; i < bytes.size(); ++i) {
        hash = (hash ^ static_cast<unsigned char>(bytes[i])) * 0x100000001b3ull;
    }
    return hash ^ (hash >> 32) ^ bytes.size();
}

}  // namespace dflash
