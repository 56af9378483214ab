// The memory that a model takes, and whether it is there.
//
// Free functions; safe from any thread.

#pragma once

#include <cstdint>
#include <string>

struct llama_context;

namespace dflash {

class GgufFile;

// Bytes that a model takes, as llama.cpp allocates them, over all devices.
struct MemoryUse {
    std::uint64_t weights = 0;
    std::uint64_t context = 0;  // KV cache and recurrent state
    std::uint64_t compute = 0;  // buffers of the largest pass
    std::uint64_t total() const { return weights + context + compute; }
};

MemoryUse memory_use(const llama_context * context);

// Bytes of this machine's memory that a process can still take without another one dying: what the kernel calls
// available, swap, and no more than this control group may have. 0 where the system does not say.
std::uint64_t available_memory();

// Whether a context of n_ctx tokens could come near to what is free here or on a GPU: only then is a plan worth its
// time. Counts no grouped heads, so it asks too often rather than too seldom.
bool may_run_short(const GgufFile & file, std::uint64_t n_ctx);

// Throws ModelError unless what `planned` (a context without memory of its own) would take is free on each of its
// devices. `what` names the thing in the message: "a context of 4096 tokens for model.gguf". is_mapped: weights that
// the CPU reads as they lie in the file cost nothing.
void require_room(const llama_context * planned, const std::string & what, bool is_mapped);

}  // namespace dflash
