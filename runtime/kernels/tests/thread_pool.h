// A small pool of threads for the tests of the kernels: parts are claimed one by one, by the caller too.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <thread>
#include <vector>

#include "parallel.h"

namespace specruntime {

class ThreadPool {
public:
    explicit ThreadPool(int threads) {
        for (int k = 1; k < threads; ++k) threads_.emplace_back([this] { work(); });
    }
    ~ThreadPool() {
        {
            std::lock_guard<std::mutex> guard(mutex_);
            stop_ = true;
        }
        wake_.notify_all();
        for (std::thread& thread : threads_) thread.join();
    }

    // What a kernel gets. With one thread there is no pool at all.
    Pool pool() { return threads_.empty() ? Pool{} : Pool{&ThreadPool::run, this}; }

private:
    struct Task {
        std::size_t parts;
        void (*part)(void*, std::size_t);
        void* job;
        std::atomic<std::size_t> next{0};
        std::size_t active = 0;  // threads inside, under the mutex
    };

    static void run(void* self, std::size_t parts, void (*part)(void*, std::size_t), void* job) {
        static_cast<ThreadPool*>(self)->do_parts(parts, part, job);
    }

    void do_parts(std::size_t parts, void (*part)(void*, std::size_t), void* job) {
        Task task{parts, part, job};
        {
            std::lock_guard<std::mutex> guard(mutex_);
            task_ = &task;
        }
        wake_.notify_all();
        claim(task);
        std::unique_lock<std::mutex> lock(mutex_);
        task_ = nullptr;
        done_.wait(lock, [&] { return task.active == 0; });
    }

    static void claim(Task& task) {
        for (std::size_t i = task.next++; i < task.parts; i = task.next++) task.part(task.job, i);
    }

    void work() {
        std::unique_lock<std::mutex> lock(mutex_);
        for (;;) {
            wake_.wait(lock, [&] { return stop_ || (task_ != nullptr && task_->next < task_->parts); });
            if (stop_) return;
            Task& task = *task_;
            ++task.active;
            lock.unlock();
            claim(task);
            lock.lock();
            if (--task.active == 0) done_.notify_all();
        }
    }

    std::mutex mutex_;
    std::condition_variable wake_, done_;
    std::vector<std::thread> threads_;
    Task* task_ = nullptr;
    bool stop_ = false;
};

}  // namespace specruntime
