// How a kernel hands its parts to somebody's thread pool (ONNX Runtime's own in a session, a test's own in the harness).
#pragma once
#include <cstddef>

namespace specruntime {

// Run part(job, i) for every i below `parts`, in any order, on any threads, and return when all of them are done.
using Parallel = void (*)(void* pool, std::size_t parts, void (*part)(void* job, std::size_t i), void* job);

struct Pool {
    Parallel parallel = nullptr;  // null: the calling thread does every part
    void* pool = nullptr;

    void run(std::size_t parts, void (*part)(void* job, std::size_t i), void* job) const {
        if (parallel != nullptr && parts > 1) {
            parallel(pool, parts, part, job);
            return;
        }
        for (std::size_t i = 0; i < parts; ++i) part(job, i);
    }
};

}  // namespace specruntime
