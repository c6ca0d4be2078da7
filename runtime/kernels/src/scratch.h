// Memory that a kernel needs while it runs, kept between calls so that a step allocates nothing.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace specruntime {

// One block of bytes, aligned to a cache line. It grows when a call needs more than any call before, then never again.
// One call uses it at a time: a kernel object that several sessions run at once keeps a list of them.
class Scratch {
public:
    Scratch() = default;
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    ~Scratch() { std::free(allocated_); }

    // At least `bytes` bytes. What was there before is lost.
    std::uint8_t* reserve(std::size_t bytes) {
        if (bytes <= size_) return bytes_;
        std::free(allocated_);
        allocated_ = nullptr, bytes_ = nullptr, size_ = 0;
        allocated_ = std::malloc(bytes + alignment);
        if (allocated_ == nullptr) throw std::bad_alloc();
        const auto address = reinterpret_cast<std::uintptr_t>(allocated_);
        bytes_ = reinterpret_cast<std::uint8_t*>((address + alignment) & ~std::uintptr_t{alignment - 1});
        size_ = bytes;
        return bytes_;
    }

    std::size_t size() const { return size_; }

private:
    static constexpr std::size_t alignment = 64;
    void* allocated_ = nullptr;
    std::uint8_t* bytes_ = nullptr;
    std::size_t size_ = 0;
};

// The scratch memory of one kernel object. Sessions on several threads may run it at once: each call, and each part of
// a call that needs memory of its own, borrows a Scratch. Once all have been as large and as many as they get, nothing
// allocates.
class ScratchPool {
public:
    ScratchPool() { free_.reserve(expected); }

    // A Scratch borrowed for the life of this object.
    class Lease {
    public:
        explicit Lease(ScratchPool& owner) : owner_(owner), scratch_(owner.take()) {}
        ~Lease() { owner_.give_back(std::move(scratch_)); }
        Lease(const Lease&) = delete;
        Lease& operator=(const Lease&) = delete;
        Scratch& operator*() const { return *scratch_; }
        Scratch* operator->() const { return scratch_.get(); }

    private:
        ScratchPool& owner_;
        std::unique_ptr<Scratch> scratch_;
    };

private:
    std::unique_ptr<Scratch> take() {
        std::lock_guard<std::mutex> guard(mutex_);
        if (free_.empty()) return std::make_unique<Scratch>();
        std::unique_ptr<Scratch> scratch = std::move(free_.back());
        free_.pop_back();
        return scratch;
    }

    void give_back(std::unique_ptr<Scratch> scratch) {
        std::lock_guard<std::mutex> guard(mutex_);
        free_.push_back(std::move(scratch));
    }

    static constexpr std::size_t expected = 64;  // leases at once before the list itself grows
    std::mutex mutex_;
    std::vector<std::unique_ptr<Scratch>> free_;
};

}  // namespace specruntime
