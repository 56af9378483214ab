#include "cuda/kernels.h"

#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

namespace dflash::cuda {
namespace {

template <class Kernel>
__global__ void run(const Kernel kernel) {
    __shared__ typename Kernel::Shared shared;
    kernel.run(static_cast<int>(blockIdx.x), shared, DeviceBlock{});
}

template <class Kernel>
void start(const Kernel & kernel, int n_blocks, int n_threads, void * stream) {
    if (n_blocks == 0) {
        return;
    }
    run<<<static_cast<unsigned>(n_blocks), static_cast<unsigned>(n_threads), 0, static_cast<cudaStream_t>(stream)>>>(
        kernel);
    if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) {
        throw std::runtime_error(std::string("CUDA refuses a kernel: ") + cudaGetErrorString(error));
    }
}

}  // namespace

void launch(const SelectorWalk & kernel, int n_sequences, void * stream) {
    if (kernel.top_k < 1 || kernel.top_k > SelectorWalk::max_top_k) {
        throw std::invalid_argument("a walk over " + std::to_string(kernel.top_k) + " candidates; use 1 to " +
                                    std::to_string(SelectorWalk::max_top_k));
    }
    start(kernel, n_sequences, kernel.n_threads(), stream);
}

void launch(const TwoTapConv & kernel, void * stream) {
    start(kernel, kernel.n_blocks(), TwoTapConv::n_threads, stream);
}

void launch(const RowStats & kernel, int n_rows, void * stream) {
    start(kernel, n_rows, RowStats::n_threads, stream);
}

void launch(const Judge & kernel, int n_sequences, void * stream) {
    start(kernel, n_sequences, Judge::n_threads, stream);
}

void launch(const Bonus & kernel, int n_sequences, void * stream) {
    start(kernel, n_sequences, Bonus::n_threads, stream);
}

int n_devices() {
    int n = 0;
    return cudaGetDeviceCount(&n) == cudaSuccess ? n : 0;
}

}  // namespace dflash::cuda
