// One kernel body for host and device.
//
// A kernel is a function of its arguments, its block's number, its shared memory and an executor. The executor runs a
// phase for every thread of the block and then waits for all of them: on the device that is one call and a barrier, on
// the host a loop. What lives from one phase to the next is in shared memory; the code between phases runs in every
// thread and may only read what no thread writes before the next barrier.
//
// Device memory is addressed by plain pointers. Nothing here allocates.

#pragma once

#include <vector>

#include "dflash/host_device.h"

namespace dflash::cuda {

#ifdef __CUDACC__
struct DeviceBlock {
    template <class Phase>
    DFLASH_HD void operator()([[maybe_unused]] const Phase & phase) const {
#ifdef __CUDA_ARCH__
        phase(static_cast<int>(threadIdx.x));
        __syncthreads();
#endif
    }
};
#endif

// Threads one after the other, in the order given: a body whose result depends on the order has a race.
struct HostBlock {
    std::vector<int> order;

    template <class Phase>
    void operator()(const Phase & phase) const {
        for (const int thread : order) {
            phase(thread);
        }
    }
};

}  // namespace dflash::cuda
