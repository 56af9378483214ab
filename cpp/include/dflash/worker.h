// One thread that does one job at a time while its owner does something else.
//
// Between jobs the thread sleeps. What a job throws comes out of `wait`, on the owner's thread. The thread begins
// with the first job; the destructor waits for the job in flight. `start` and `wait` are called from one thread.

#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace dflash {

class Worker {
public:
    Worker() = default;
    ~Worker();
    Worker(const Worker &) = delete;
    Worker & operator=(const Worker &) = delete;

    // Throws std::logic_error where a job is in flight, std::system_error where no thread can be made.
    void start(std::function<void()> job);
    // A job was started and `wait` has not been called since.
    bool in_flight() const { return in_flight_; }
    // Returns when the job is done, at once where there is none; throws what the job threw.
    void wait();

private:
    void run();

    std::mutex mutex_;
    std::condition_variable changed_;
    std::function<void()> job_;  // set: to be done, or being done
    std::exception_ptr thrown_;
    bool leaving_ = false;
    bool in_flight_ = false;  // the owner's own
    std::thread thread_;      // last: it uses the others
};

}  // namespace dflash
