// A tile of 16 outputs times a few rounded rows: the kernel of all integer formats and roundings.
#pragma once

#include "../simd/common.h"
#include "kernels.h"

namespace specruntime {
namespace SPECRUNTIME_ISA {

/// Where a tile's weights and a group of rows lie.
struct IntegerTile {
    const uint8_t* weights;
    const int8_t* high;
    const int8_t* low;
    size_t row_stride;
    const RowBlock* blocks;
    const Geometry* geometry;
    bool has_zeros;
    bool half_scales;
};

SPECRUNTIME_INLINE F16 load_scales(const uint8_t* from, bool half) {
    return half ? load_half16(reinterpret_cast<const uint16_t*>(from)) : load16(reinterpret_cast<const float*>(from));
}

/// Add the products of four inputs, for each row.
template <int Rows, bool Int4, bool Fine>
SPECRUNTIME_INLINE void add_step(I16* sums, I16* low_sums, const WeightBytes<Int4>& weights, const int8_t* high,
                                 const int8_t* low, size_t row_stride) {
    SPECRUNTIME_UNROLL
    for (int row = 0; row < Rows; ++row) {
        sums[row] = dot<Int4>(sums[row], weights, row_bytes(high + row * row_stride));
        if constexpr (Fine) low_sums[row] = dot<Int4>(low_sums[row], weights, row_bytes(low + row * row_stride));
    }
}

/// Add the products of sixteen inputs, for each row.
template <int Rows, bool Int4, bool Fine>
SPECRUNTIME_INLINE void add_sixteen(I16* sums, I16* low_sums, const uint8_t* values, const int8_t* high,
                                    const int8_t* low, size_t row_stride) {
    constexpr int kBytes = Int4 ? 128 : 256;
    SPECRUNTIME_UNROLL
    for (int line = 0; line < kBytes; line += 64) prefetch(values + kPrefetchDistance + line);
    if constexpr (Int4) {
        SPECRUNTIME_UNROLL
        for (int unit = 0; unit < 2; ++unit) {
            WeightBytes<true> first, second;
            load_two_steps(values + unit * 64, &first, &second);
            add_step<Rows, true, Fine>(sums, low_sums, first, high + unit * 8, low + unit * 8, row_stride);
            add_step<Rows, true, Fine>(sums, low_sums, second, high + unit * 8 + 4, low + unit * 8 + 4, row_stride);
        }
    } else {
        SPECRUNTIME_UNROLL
        for (int step = 0; step < 4; ++step) {
            add_step<Rows, false, Fine>(sums, low_sums, load_step(values + step * 64), high + step * 4, low + step * 4,
                                        row_stride);
        }
    }
}

/// y[row] = the products of `Rows` rows with 16 outputs, block after block in order.
template <int Rows, bool Int4, bool Fine, bool Minimum>
SPECRUNTIME_INLINE void integer_tile(const IntegerTile& tile, F16* y) {
    const Geometry& geometry = *tile.geometry;
    const int64_t row_blocks = geometry.blocks;
    SPECRUNTIME_UNROLL
    for (int row = 0; row < Rows; ++row) y[row] = zero16();
    const uint8_t* record = tile.weights;
    const int8_t* high = tile.high;
    const int8_t* low = tile.low;
    for (int64_t b = 0; b < geometry.blocks; ++b, record += geometry.record_bytes) {
        const RowBlock* block = tile.blocks + b;
        I16 sums[Rows], low_sums[Fine ? Rows : 1];
        // The sums start at minus (zero point times the row's levels), so that centring costs nothing. With two bytes
        // a level the low sums, which count once, carry it.
        I16* starts = Fine ? low_sums : sums;
        if (tile.has_zeros) {
            const I16 zeros = load_bytes16(record + geometry.zero_offset);
            const I16 negative = set_int16(kOffset<Int4>) - zeros;
            SPECRUNTIME_UNROLL
            for (int row = 0; row < Rows; ++row) starts[row] = negative * set_int16(block[row * row_blocks].levels);
        } else {
            SPECRUNTIME_UNROLL
            for (int row = 0; row < Rows; ++row) starts[row] = set_int16(block[row * row_blocks].start);
        }
        if constexpr (Fine) {
            SPECRUNTIME_UNROLL
            for (int row = 0; row < Rows; ++row) sums[row] = zero_int16();
        }
        const uint8_t* values = record;
        for (int64_t k = 0; k < geometry.block; k += 16) {
            add_sixteen<Rows, Int4, Fine>(sums, low_sums, values, high, low, tile.row_stride);
            values += Int4 ? 128 : 256;
            high += 16;
            if constexpr (Fine) low += 16;
        }
        prefetch(values + kPrefetchDistance);
        const F16 scale = load_scales(record + geometry.scale_offset, tile.half_scales);
        F16 centre = scale;
        if constexpr (Minimum) {  // the weight of the zero point's level
            const F16 zero =
                tile.has_zeros ? to_float(load_bytes16(record + geometry.zero_offset)) : set16(Int4 ? 8.0f : 128.0f);
            centre = fma(zero, scale, load_scales(record + geometry.minimum_offset, tile.half_scales));
        }
        SPECRUNTIME_UNROLL
        for (int row = 0; row < Rows; ++row) {
            const RowBlock& rounded = block[row * row_blocks];
            const I16 sum = Fine ? shift_left<7>(sums[row]) + low_sums[row] : sums[row];
            y[row] = fma(to_float(sum) * set16(rounded.scale), scale, y[row]);
            if constexpr (Minimum) y[row] = fma(centre, set16(rounded.sum), y[row]);
        }
    }
}

}  // namespace SPECRUNTIME_ISA
}  // namespace specruntime
