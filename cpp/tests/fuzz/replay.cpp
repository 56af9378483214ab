// Runs every file of the folders given, and variations of each, through a fuzz target: what stands in for libFuzzer
// where there is no clang. The variations are the same ones every time.

#include <algorithm>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

#include "fuzz.h"

namespace {

constexpr int variations = 300;

using Input = std::vector<std::uint8_t>;

void vary(Input & input, std::mt19937 & random) {
    const auto below = [&random](std::size_t n) { return std::size_t(random()) % std::max<std::size_t>(n, 1); };
    for (std::size_t edits = 1 + below(4); edits > 0 && !input.empty(); --edits) {
        const std::size_t at = below(input.size());
        switch (below(4)) {
            case 0: input[at] ^= std::uint8_t(1u << below(8)); break;
            case 1: input[at] = std::uint8_t(below(2) ? 0xff : 0x00); break;
            case 2: input.resize(at); break;
            default: input.insert(input.begin() + std::ptrdiff_t(at), 1 + below(8), std::uint8_t(random()));
        }
    }
}

}  // namespace

int main(int argc, char ** argv) {
    std::size_t n_inputs = 0;
    for (int i = 1; i < argc; ++i) {
        std::vector<std::filesystem::path> paths;
        for (const auto & entry : std::filesystem::directory_iterator(argv[i])) {
            paths.push_back(entry.path());
        }
        std::sort(paths.begin(), paths.end());
        for (const auto & path : paths) {
            std::ifstream file(path, std::ios::binary);
            const Input input{std::istreambuf_iterator<char>(file), {}};
            LLVMFuzzerTestOneInput(input.data(), input.size());
            std::mt19937 random(static_cast<std::uint32_t>(n_inputs++));
            for (int n = 0; n < variations; ++n) {
                Input varied = input;
                vary(varied, random);
                LLVMFuzzerTestOneInput(varied.data(), varied.size());
            }
        }
    }
    std::printf("%zu inputs and %d variations of each\n", n_inputs, variations);
    return n_inputs > 0 ? 0 : 1;
}
