// Tiles of 16 outputs times a few rows of floats, for weights stored as fp32, fp16 or bf16.
#pragma once

#include "../simd/common.h"
#include "kernels.h"

namespace specruntime {
namespace SPECRUNTIME_ISA {

template <Format Stored>
constexpr size_t kFloatBytes = Stored == Format::fp32 ? 4 : 2;

template <Format Stored>
SPECRUNTIME_INLINE F16 load_weights(const uint8_t* from) {
    if constexpr (Stored == Format::fp32) return load16(reinterpret_cast<const float*>(from));
    if constexpr (Stored == Format::fp16) return load_half16(reinterpret_cast<const uint16_t*>(from));
    return load_bfloat16(reinterpret_cast<const uint16_t*>(from));
}

/// y[tile * Rows + row] = the products of `Rows` rows with `Tiles` tiles, input after input in order. One row of one
/// tile is a chain of dependent sums, so a few rows take several tiles at once to hide its latency.
template <int Rows, int Tiles, Format Stored>
SPECRUNTIME_INLINE void float_tiles(const uint8_t* weights, size_t tile_bytes, const float* x, int64_t inputs, F16* y) {
    constexpr size_t kStep = 16 * kFloatBytes<Stored>;
    constexpr size_t kAhead = 4096;  // less than the integer kernels: several tiles are read side by side
    F16 sums[Tiles * Rows];
    repeat<Tiles * Rows>([&](auto i) SPECRUNTIME_INLINE_LAMBDA { sums[i] = zero16(); });
    for (int64_t k = 0; k < inputs; ++k, weights += kStep) {
        repeat<Tiles>([&](auto tile) SPECRUNTIME_INLINE_LAMBDA {
            const uint8_t* from = weights + tile * tile_bytes;
            prefetch(from + kAhead);
            const F16 weight = load_weights<Stored>(from);
            repeat<Rows>([&](auto row) SPECRUNTIME_INLINE_LAMBDA {
                F16& sum = sums[tile * Rows + row];
                sum = fma(weight, set16(x[row * inputs + k]), sum);
            });
        });
    }
    repeat<Tiles * Rows>([&](auto i) SPECRUNTIME_INLINE_LAMBDA { y[i] = sums[i]; });
}

}  // namespace SPECRUNTIME_ISA
}  // namespace specruntime
