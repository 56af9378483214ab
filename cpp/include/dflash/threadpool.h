// The CPU threads that compute a llama.cpp context's graphs. Contexts that take turns share one pool: idle
// workers of a second pool would spin on the cores that the first one needs. One graph at a time per pool.

#pragma once

#include <memory>

struct ggml_threadpool;

namespace dflash {

// Cores this process may use for arithmetic: performance cores, capped by its CPU affinity.
int default_threads();

class Threadpool {
public:
    // polls: idle workers spin for a while in wait of the next graph, which then starts sooner.
    explicit Threadpool(int n_threads, bool polls = true);
    // Somebody else's pool, which outlives this object.
    Threadpool(ggml_threadpool * pool, int n_threads) : n_threads_(n_threads), pool_(pool), owned_(false) {}
    ~Threadpool();
    Threadpool(const Threadpool &) = delete;
    Threadpool & operator=(const Threadpool &) = delete;

    // Sends idle workers to sleep, until the next graph. Does nothing to somebody else's pool.
    void rest();

    int n_threads() const { return n_threads_; }
    ggml_threadpool * raw() const { return pool_; }

private:
    int n_threads_;
    ggml_threadpool * pool_;
    bool owned_ = true;
};

}  // namespace dflash
