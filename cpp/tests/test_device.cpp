// The kernels on a device. Skipped (exit code 77) where there is none.

#include <cstdio>

#include "check.h"
#include "cuda/kernels.h"
#include "cuda/self_check.h"

TEST(kernels_agree_with_their_references) {
    for (const dflash::cuda::CheckResult & result : dflash::cuda::self_check()) {
        if (!result.problem.empty()) {
            std::printf("  %s: %s\n", result.kernel.c_str(), result.problem.c_str());
        }
        CHECK(result.problem.empty());
    }
}

int main() {
    if (dflash::cuda::n_devices() == 0) {
        std::printf("no CUDA device here\n");
        return 77;
    }
    return check::run();
}
