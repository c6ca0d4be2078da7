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

// Loops over the rows of a register tile must be unrolled, or their accumulators live in memory. Sanitized builds leave
// them as they are: the unrolled code takes many minutes to instrument.
#if defined(SPECRUNTIME_SANITIZED)
#define SPECRUNTIME_UNROLL
#elif defined(__clang__)
#define SPECRUNTIME_UNROLL _Pragma("clang loop unroll(full)")
#elif defined(__GNUC__)
#define SPECRUNTIME_UNROLL _Pragma("GCC unroll 32")
#else
#define SPECRUNTIME_UNROLL
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

}  // namespace SPECRUNTIME_ISA
}  // namespace specruntime
