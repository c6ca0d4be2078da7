// What every instruction-set file shares: macros, and plain functions that would otherwise come from the standard
// library. All of it lies in the namespace of the instruction set (SPECRUNTIME_ISA): an inline function of the standard
// library compiled with AVX-512 flags could be the copy that the linker keeps for the whole program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#ifndef SPECRUNTIME_ISA
#error "define SPECRUNTIME_ISA, the namespace of the instruction set, before including a simd header"
#endif

#if defined(_MSC_VER)
#define SPECRUNTIME_INLINE __forceinline
#else
#define SPECRUNTIME_INLINE inline __attribute__((always_inline))
#endif

// For the body of a lambda that repeat() calls.
#if defined(_MSC_VER)
#define SPECRUNTIME_INLINE_LAMBDA
#else
#define SPECRUNTIME_INLINE_LAMBDA __attribute__((always_inline))
#endif

namespace specruntime {
namespace SPECRUNTIME_ISA {

template <typename T>
SPECRUNTIME_INLINE T smaller(T a, T b) {
    return b < a ? b : a;
}

/// `count` bytes of any alignment read as a T.
template <typename T>
SPECRUNTIME_INLINE T read(const void* from) {
    T value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

template <int Value>
struct Index {
    constexpr operator int() const { return Value; }
};

/// Call step(0), ..., step(Count - 1) with constants for numbers. A register tile is an array of vectors, and only an
/// array whose indices are constants from the start is kept in registers: a loop unrolled later leaves it in memory.
template <int Count, int First = 0, typename Step>
SPECRUNTIME_INLINE void repeat(const Step& step) {
    if constexpr (First < Count) {
        step(Index<First>());
        repeat<Count, First + 1>(step);
    }
}

}  // namespace SPECRUNTIME_ISA
}  // namespace specruntime
