// Rounds rows of activations to 8 bits (blocks, rows) or 15 bits (fine), a scale a block.
#pragma once

#include "../simd/common.h"
#include "kernels.h"

namespace specruntime {
namespace SPECRUNTIME_ISA {

constexpr int32_t kInfinityBits = 0x7f800000;
constexpr int32_t kNanBits = 0x7fc00000;
constexpr int32_t kSmallestBits = 0x0da24260;  // 1e-30: below, the inverse of the scale could overflow
constexpr float kCoarseTop = 127.0f;
constexpr float kFineTop = 16256.0f;  // 128 * 127

/// Sixteen inputs, of which `valid` exist (all of them with Whole); zeros stand for the others.
template <bool Whole>
SPECRUNTIME_INLINE F16 load_inputs(const float* x, int64_t valid) {
    if (Whole || valid >= 16) return load16(x);
    float padded[16] = {};
    for (int64_t k = 0; k < valid; ++k) padded[k] = x[k];
    return load16(padded);
}

/// The largest magnitude of a block as bits: they order as the numbers do, and infinities and NaN are largest.
template <bool Whole>
SPECRUNTIME_INLINE int32_t largest_bits(const float* x, int64_t block, int64_t valid) {
    const I16 magnitude = set_int16(0x7fffffff);
    I16 largest = zero_int16();
    for (int64_t k = 0; k < block; k += 16) {
        largest = max(largest, bits(load_inputs<Whole>(x + k, valid - k)) & magnitude);
    }
    return reduce_max(largest);
}

/// Write the levels of a block's inputs and return their sum.
template <bool Fine, bool Whole>
SPECRUNTIME_INLINE int32_t write_levels(const float* x, int64_t block, int64_t valid, float inverse, int8_t* high,
                                        int8_t* low) {
    I16 sum = zero_int16();
    for (int64_t k = 0; k < block; k += 16) {
        const I16 level = to_int(load_inputs<Whole>(x + k, valid - k) * set16(inverse));
        sum = sum + level;
        if constexpr (Fine) {
            const I16 upper = shift_right<7>(level + set_int16(64));
            store_bytes(high + k, upper);
            store_bytes(low + k, level - shift_left<7>(upper));
        } else {
            store_bytes(high + k, level);
        }
    }
    return reduce_add(sum);
}

/// Round one block of a row. `zero`: the level of the weights that stands for zero, as the path's products count
/// levels.
template <bool Fine, bool Whole>
SPECRUNTIME_INLINE RowBlock round_block(const float* x, int64_t block, int64_t valid, int32_t zero, int8_t* high,
                                        int8_t* low) {
    constexpr float top = Fine ? kFineTop : kCoarseTop;
    const int32_t largest = largest_bits<Whole>(x, block, valid);
    if (largest < kSmallestBits || largest >= kInfinityBits) {
        // Nothing to round, or an infinity or NaN, which makes the row's sum over this block NaN on every path.
        std::memset(high, 0, static_cast<size_t>(block));
        if constexpr (Fine) std::memset(low, 0, static_cast<size_t>(block));
        const float scale = largest < kSmallestBits ? 0.0f : read<float>(&kNanBits);
        return {scale, scale, 0, 0};
    }
    const float magnitude = read<float>(&largest);
    const float scale = magnitude / top;
    const int32_t levels = write_levels<Fine, Whole>(x, block, valid, top / magnitude, high, low);
    return {scale, scale * static_cast<float>(levels), -zero * levels, levels};
}

template <bool Fine>
void round_some_rows(const RoundingPart& part) {
    const Geometry& geometry = *part.geometry;
    const int64_t inputs = part.matrix->inputs, block = geometry.block;
    const bool int4 = part.matrix->format == Format::int4;
    const int32_t zero = int4 ? 8 - kOffset<true> : 128 - kOffset<false>;
    const size_t stride = part.rows.stride, written = static_cast<size_t>(geometry.padded_inputs);
    for (int64_t row = part.first_row; row < part.last_row; ++row) {
        const float* x = part.x + row * inputs;
        int8_t* high = part.rows.high + static_cast<size_t>(row) * stride;
        int8_t* low = Fine ? part.rows.low + static_cast<size_t>(row) * stride : high;
        for (int64_t b = 0; b < geometry.blocks; ++b) {
            const int64_t at = b * block;
            part.rows.blocks[row * geometry.blocks + b] =
                at + block <= inputs ? round_block<Fine, true>(x + at, block, block, zero, high + at, low + at)
                                     : round_block<Fine, false>(x + at, block, inputs - at, zero, high + at, low + at);
        }
        std::memset(high + written, 0, stride - written);
        if constexpr (Fine) std::memset(low + written, 0, stride - written);
    }
}

inline void round_rows(const RoundingPart& part) {
    if (part.matrix->rounding == Rounding::fine) {
        round_some_rows<true>(part);
    } else {
        round_some_rows<false>(part);
    }
}

}  // namespace SPECRUNTIME_ISA
}  // namespace specruntime
