// A thread pool of the tests' own, to stand for ONNX Runtime's.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "parallel.h"

namespace tests {

class Threads {
public:
    /// `count` threads in all, the calling one among them.
    explicit Threads(int count) {
        for (int i = 1; i < count; ++i) workers_.emplace_back([this] { work(); });
    }
    ~Threads() {
        {
            std::lock_guard<std::mutex> guard(mutex_);
            stop_ = true;
        }
        wake_.notify_all();
        for (std::thread& worker : workers_) worker.join();
    }
    specruntime::Pool pool() { return {workers_.empty() ? nullptr : run, this}; }

private:
    using Part = void (*)(void*, size_t);

    static void run(void* self, size_t parts, Part part, void* job) {
        static_cast<Threads*>(self)->run_all(parts, part, job);
    }

    void run_all(size_t parts, Part part, void* job) {
        {
            std::lock_guard<std::mutex> guard(mutex_);
            part_ = part, job_ = job, parts_ = parts;
            next_ = 0;
            busy_ = workers_.size();
            ++turn_;
        }
        wake_.notify_all();
        claim();
        std::unique_lock<std::mutex> lock(mutex_);
        done_.wait(lock, [this] { return busy_ == 0; });
    }

    void claim() {
        for (size_t i = next_++; i < parts_; i = next_++) part_(job_, i);
    }

    void work() {
        size_t seen = 0;
        for (;;) {
            {
                std::unique_lock<std::mutex> lock(mutex_);
                wake_.wait(lock, [&] { return stop_ || turn_ != seen; });
                if (stop_) return;
                seen = turn_;
            }
            claim();
            std::lock_guard<std::mutex> guard(mutex_);
            if (--busy_ == 0) done_.notify_one();
        }
    }

    std::vector<std::thread> workers_;
    std::mutex mutex_;
    std::condition_variable wake_, done_;
    std::atomic<size_t> next_{0};
    Part part_ = nullptr;
    void* job_ = nullptr;
    size_t parts_ = 0, busy_ = 0, turn_ = 0;
    bool stop_ = false;
};

}  // namespace tests
