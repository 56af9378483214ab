// Devices by name: the local ones that llama.cpp was built for, and those of an RPC server.
//
// Free functions; safe from any thread.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

struct ggml_backend_device;

namespace dflash {

// A local device by ggml's name (CPU, CUDA0, ...), or the first device of "rpc:HOST:PORT". It is used only where
// it is named: a model loaded later does not spread to it. Throws std::invalid_argument: no such device, or
// nothing answers there.
ggml_backend_device * find_device(const std::string & name);

struct DeviceInfo {
    std::string name;         // ggml's
    std::string description;  // its maker's
    bool is_gpu = false;      // has memory of its own
    std::uint64_t memory_free = 0;
    std::uint64_t memory_total = 0;
};

// The local devices of this build.
std::vector<DeviceInfo> devices();

// Serves this machine's CPU to RPC clients; returns only when the process ends. Listens on `endpoint`
// (HOST:PORT), without any authentication: give it loopback or a private network. Throws std::invalid_argument
// where this build has no RPC.
void serve_rpc(const std::string & endpoint, int n_threads);

}  // namespace dflash
