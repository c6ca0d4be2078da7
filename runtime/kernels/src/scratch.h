// Memory that a kernel needs while it runs, kept between calls so that a step allocates nothing.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

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

}  // namespace specruntime
