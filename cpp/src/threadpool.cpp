#include "dflash/threadpool.h"

#include <algorithm>

#ifdef __linux__
#include <sched.h>
#endif

#include "backend_function.h"
#include "common.h"
#include "dflash/error.h"
#include "dflash/log.h"
#include "ggml-cpu.h"

namespace dflash {
namespace {

template <typename Function>
Function * cpu_function(const char * name) {
    init_backend();
    ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    auto * found = backend_function<Function>(cpu ? ggml_backend_dev_backend_reg(cpu) : nullptr, name);
    if (!found) {
        throw Error(std::string("the CPU backend has no ") + name + "; build llama.cpp with our patches");
    }
    return found;
}

}  // namespace

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
    pool_ = cpu_function<decltype(ggml_threadpool_new)>("ggml_threadpool_new")(&params);
    if (!pool_) {
        throw Error("cannot start " + std::to_string(n_threads) + " compute threads; use fewer (n_threads)");
    }
}

void Threadpool::rest() {
    if (owned_) {
        cpu_function<decltype(ggml_threadpool_pause)>("ggml_threadpool_pause")(pool_);
    }
}

Threadpool::~Threadpool() {
    if (owned_) {
        cpu_function<decltype(ggml_threadpool_free)>("ggml_threadpool_free")(pool_);
    }
}

}  // namespace dflash
