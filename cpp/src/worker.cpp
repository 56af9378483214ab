#include "dflash/worker.h"

#include <stdexcept>
#include <utility>

namespace dflash {

Worker::~Worker() {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        leaving_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) {
        thread_.join();
    }
}

void Worker::start(std::function<void()> job) {
    if (in_flight_) {
        throw std::logic_error("the worker has a job in flight; wait for it");
    }
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        job_ = std::move(job);
    }
    if (!thread_.joinable()) {
        thread_ = std::thread([this] { run(); });
    }
    in_flight_ = true;
    changed_.notify_all();
}

void Worker::wait() {
    if (!in_flight_) {
        return;
    }
    in_flight_ = false;
    std::exception_ptr thrown;
    {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [this] { return !job_; });
        thrown = std::exchange(thrown_, nullptr);
    }
    if (thrown) {
        std::rethrow_exception(thrown);
    }
}

void Worker::run() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
        changed_.wait(lock, [this] { return job_ || leaving_; });
        if (!job_) {
            return;
        }
        lock.unlock();
        std::exception_ptr thrown;
        try {
            job_();
        } catch (...) {
            thrown = std::current_exception();
        }
        lock.lock();
        job_ = nullptr;
        thrown_ = thrown;
        changed_.notify_all();
    }
}

}  // namespace dflash
