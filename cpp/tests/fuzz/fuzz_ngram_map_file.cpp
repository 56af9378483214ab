// A k4v table's file with any body. The checksum is made right, or no input would come past it; what loads must work
// and must survive being saved and loaded again.

#include "dflash/error.h"
#include "dflash/ngram_map.h"
#include "file_io.h"
#include "fuzz.h"

namespace {

constexpr std::size_t head_size = 8 + 4 + 8;  // magic, version, checksum

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t * data, std::size_t size) {
    std::string bytes(reinterpret_cast<const char *>(data), size);
    if (size >= head_size) {
        const std::uint64_t right = dflash::checksum(bytes.substr(head_size));
        std::memcpy(bytes.data() + 12, &right, sizeof(right));
    }
    const std::string path = fuzz::write_scratch(bytes.data(), bytes.size());
    try {
        dflash::NgramMap map = dflash::NgramMap::load(path);
        const dflash::Proposal proposal = map.propose();
        if (!proposal.tokens.empty()) {
            map.accept(1);
        }
        map.extend({1, 2, 3, 1, 2});
        map.propose_after({3}, 4);
        map.truncate(map.size() / 2);
        map.propose();
        map.save(path);
        const dflash::NgramMap again = dflash::NgramMap::load(path);
        if (again.n_corpus() != map.n_corpus() || again.size() != map.size()) {
            std::abort();
        }
    } catch (const dflash::NgramMapError &) {
        // Refused, as damage should be.
    }
    return 0;
}
