// The header of a GGUF file, any bytes: read, or refused with a ModelError.

#include "dflash/error.h"
#include "dflash/gguf_file.h"
#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t * data, std::size_t size) {
    try {
        const dflash::GgufFile file(fuzz::write_scratch(data, size));
        file.vocab_size();
        file.arch_integer("block_count");
        file.require_language_model();
    } catch (const dflash::ModelError &) {
        // Refused, as damage should be.
    }
    return 0;
}
