// A lattice of any scores, walked from any place: a path of candidates with probabilities, or std::invalid_argument.

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "dflash/lattice.h"
#include "fuzz.h"

namespace {

struct SmallCodebooks : dflash::Codebooks {
    int rank() const override { return 2; }
    std::vector<float> predecessor(dflash::Token token) const override { return {float(token), 1.0f}; }
    std::vector<float> successor(dflash::Token token) const override { return {1.0f, float(-token)}; }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t * data, std::size_t size) {
    fuzz::Bytes bytes(data, size);
    const int k = bytes.between(0, 4);
    const int n_positions = bytes.between(0, 5);
    const bool with_codebooks = bytes.between(0, 1);
    const int extra = bytes.between(0, 9) == 9;  // now and then a row of the wrong length
    dflash::WalkOptions options;
    options.first_position = bytes.between(-1, 6);
    options.n_tokens = bytes.between(-1, 7);
    options.predecessor = bytes.between(-1, 8);
    options.temperature = bytes.between(0, 1) ? bytes.take<float>() : 0.0f;
    options.seed = bytes.take<std::uint64_t>();
    options.anchor_position = bytes.take<std::int64_t>();
    try {
        dflash::Lattice lattice(bytes.between(0, 8), k,
                                with_codebooks ? std::make_shared<const SmallCodebooks>() : nullptr);
        for (int position = 1; position <= n_positions; ++position) {
            std::vector<dflash::Token> candidates(k);
            std::vector<float> scores((position == 1 ? 1 : k) * k + extra), unary(with_codebooks ? k : 0), gate;
            std::generate(candidates.begin(), candidates.end(), [&] { return bytes.between(0, 8); });
            std::generate(scores.begin(), scores.end(), [&] { return bytes.take<float>(); });
            std::generate(unary.begin(), unary.end(), [&] { return bytes.take<float>(); });
            if (with_codebooks) {
                gate = {bytes.take<float>(), bytes.take<float>()};
            }
            lattice.add_position(candidates, scores, unary, gate);
        }
        const dflash::Path path = lattice.walk(options);
        if (path.probabilities.size() != path.tokens.size() || path.q.size() != path.tokens.size()) {
            std::abort();
        }
        for (std::size_t i = 0; i < path.tokens.size(); ++i) {
            const auto & candidates = lattice.candidates(options.first_position + int(i));
            if (std::find(candidates.begin(), candidates.end(), path.tokens[i]) == candidates.end()) {
                std::abort();
            }
        }
    } catch (const std::invalid_argument &) {
        // Refused, as it should be.
    }
    return 0;
}
