#include "dflash/threadpool.h"

#include <algorithm>

#ifdef __linux__
#include <sched.h>
#endif

#include "common.h"
#include "dflash/error.h"
#include "ggml-cpu.h"

namespace dflash {

int default_threads() {
    int n = std::max(1, static_cast<int>(common_cpu_get_num_math()));
#ifdef __linux__
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof(allowed), &allowed) == 0) {
        n = std::min(n, std::max(1, CPU_COUNT(&allowed)));
    }
#endif
    return n;
}

Threadpool::Threadpool(int n_threads, bool polls) : n_threads_(n_threads) {
    ggml_threadpool_params params = ggml_threadpool_params_default(n_threads);
    if (!polls) {
        params.poll = 0;
    }
    pool_ = ggml_threadpool_new(&params);
    if (!pool_) {
        throw Error("cannot start " + std::to_string(n_threads) + " compute threads; use fewer (n_threads)");
    }
}

void Threadpool::rest() {
    if (owned_) {
        ggml_threadpool_pause(pool_);
    }
}

Threadpool::~Threadpool() {
    if (owned_) {
        ggml_threadpool_free(pool_);
    }
}

}  // namespace dflash
