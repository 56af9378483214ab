#include "dflash/memory.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <limits>
#include <map>
#include <sstream>

#include "dflash/device.h"
#include "dflash/error.h"
#include "dflash/gguf_file.h"
#include "ggml-backend.h"
#include "llama-ext.h"

namespace dflash {
namespace {

constexpr std::uint64_t unknown = std::numeric_limits<std::uint64_t>::max();

// The number after `key` in a file of lines "key number ...".
std::uint64_t number_in(const char * path, const std::string & key) {
    std::ifstream file(path);
    std::string line;
    while (std::getline(file, line)) {
        std::istringstream words(line);
        std::string word;
        std::uint64_t number = 0;
        if ((key.empty() || (words >> word && word == key)) && words >> number) {
            return number;
        }
    }
    return unknown;
}

// What the control group may still take; `unknown` without a limit.
std::uint64_t left_in_group() {
    const std::uint64_t limit = number_in("/sys/fs/cgroup/memory.max", "");
    const std::uint64_t used = number_in("/sys/fs/cgroup/memory.current", "");
    if (limit == unknown || used == unknown) {
        return unknown;
    }
    // Pages of files are given up first.
    const std::uint64_t files = number_in("/sys/fs/cgroup/memory.stat", "file");
    const std::uint64_t held = used - std::min(used, files == unknown ? 0 : files);
    return limit - std::min(limit, held);
}

std::string gibibytes(std::uint64_t bytes) {
    char text[32];
    std::snprintf(text, sizeof(text), "%.2f GiB", static_cast<double>(bytes) / (1 << 30));
    return text;
}

}  // namespace

MemoryUse memory_use(const llama_context * context) {
    MemoryUse use;
    for (const auto & [type, bytes] : llama_get_memory_breakdown(context)) {
        use.weights += bytes.model;
        use.context += bytes.context;
        use.compute += bytes.compute;
    }
    return use;
}

std::uint64_t available_memory() {
    const std::uint64_t available = number_in("/proc/meminfo", "MemAvailable:");
    if (available == unknown) {
        return 0;
    }
    const std::uint64_t swap = number_in("/proc/meminfo", "SwapFree:");
    return std::min(1024 * (available + (swap == unknown ? 0 : swap)), left_in_group());
}

bool may_run_short(const GgufFile & file, std::uint64_t n_ctx) {
    const double tokens = static_cast<double>(n_ctx ? n_ctx : file.arch_integer("context_length"));
    const double per_token = 2.0 * sizeof(float) * static_cast<double>(file.arch_integer("block_count")) *
                             static_cast<double>(file.arch_integer("embedding_length"));
    std::uint64_t free = available_memory();
    for (const DeviceInfo & device : devices()) {
        if (device.is_gpu && device.memory_free > 0) {
            free = free ? std::min(free, device.memory_free) : device.memory_free;
        }
    }
    return free > 0 && tokens * per_token + static_cast<double>(file.tensor_bytes()) > static_cast<double>(free) / 2;
}

void require_room(const llama_context * planned, const std::string & what, bool is_mapped) {
    ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    std::map<ggml_backend_dev_t, MemoryUse> uses;
    for (const auto & [type, bytes] : llama_get_memory_breakdown(planned)) {
        ggml_backend_dev_t device = ggml_backend_buft_get_device(type);
        const bool is_here = !device || ggml_backend_buft_is_host(type);
        MemoryUse & use = uses[is_here ? cpu : device];
        use.weights += is_mapped && type == ggml_backend_cpu_buffer_type() ? 0 : bytes.model;
        use.context += bytes.context;
        use.compute += bytes.compute;
    }
    for (const auto & [device, use] : uses) {
        std::uint64_t free = available_memory();
        if (device != cpu) {
            std::size_t of_device = 0;
            std::size_t total = 0;
            ggml_backend_dev_memory(device, &of_device, &total);
            free = of_device;
        }
        if (free > 0 && use.total() > free) {
            throw ModelError(what + " needs " + gibibytes(use.total()) + " on " + ggml_backend_dev_name(device) +
                             " (weights " + gibibytes(use.weights) + ", KV cache " + gibibytes(use.context) +
                             ", buffers " + gibibytes(use.compute) + "), and " + gibibytes(free) +
                             " are free; use a smaller n_ctx, type_k and type_v 'q8_0', or a smaller model");
        }
    }
}

}  // namespace dflash
