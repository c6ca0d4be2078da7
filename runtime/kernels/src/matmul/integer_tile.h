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

/// Sums of `Tiles` tiles and `Rows` rows: that of a tile and row lies at tile * Rows + row.
template <int Rows, int Tiles, bool Fine>
struct IntegerSums {
    I16 high[Tiles * Rows];
    I16 low[Fine ? Tiles * Rows : 1];
};

/// Add the products of four inputs: each row's bytes are spread once and used for every tile.
template <int Rows, int Tiles, bool Int4, bool Fine>
SPECRUNTIME_INLINE void add_step(IntegerSums<Rows, Tiles, Fine>& sums, const WeightBytes<Int4>* weights,
                                 const IntegerTile& tile, int64_t k) {
    SPECRUNTIME_UNROLL
    for (int row = 0; row < Rows; ++row) {
        const RowBytes high = row_bytes(tile.high + k + row * tile.row_stride);
        SPECRUNTIME_UNROLL
        for (int t = 0; t < Tiles; ++t)
            sums.high[t * Rows + row] = dot<Int4>(sums.high[t * Rows + row], weights[t], high);
        if constexpr (Fine) {
            const RowBytes low = row_bytes(tile.low + k + row * tile.row_stride);
            SPECRUNTIME_UNROLL
            for (int t = 0; t < Tiles; ++t)
                sums.low[t * Rows + row] = dot<Int4>(sums.low[t * Rows + row], weights[t], low);
        }
    }
}

/// Add the products of sixteen inputs from `k` on, whose weights lie at `values` in the first tile.
template <int Rows, int Tiles, bool Int4, bool Fine>
SPECRUNTIME_INLINE void add_sixteen(IntegerSums<Rows, Tiles, Fine>& sums, const uint8_t* values,
                                    const IntegerTile& tile, int64_t k) {
    constexpr int kBytes = Int4 ? 128 : 256;
    const size_t next_tile = tile.geometry->tile_bytes;
    SPECRUNTIME_UNROLL
    for (int t = 0; t < Tiles; ++t) {
        SPECRUNTIME_UNROLL
        for (int line = 0; line < kBytes; line += 64) prefetch(values + t * next_tile + kPrefetchDistance + line);
    }
    if constexpr (Int4) {
        SPECRUNTIME_UNROLL
        for (int unit = 0; unit < 2; ++unit) {
            WeightBytes<true> first[Tiles], second[Tiles];
            SPECRUNTIME_UNROLL
            for (int t = 0; t < Tiles; ++t) load_two_steps(values + t * next_tile + unit * 64, &first[t], &second[t]);
            add_step<Rows, Tiles, true, Fine>(sums, first, tile, k + unit * 8);
            add_step<Rows, Tiles, true, Fine>(sums, second, tile, k + unit * 8 + 4);
        }
    } else {
        SPECRUNTIME_UNROLL
        for (int step = 0; step < 4; ++step) {
            WeightBytes<false> weights[Tiles];
            SPECRUNTIME_UNROLL
            for (int t = 0; t < Tiles; ++t) weights[t] = load_step(values + t * next_tile + step * 64);
            add_step<Rows, Tiles, false, Fine>(sums, weights, tile, k + step * 4);
        }
    }
}

/// The sums of a block start at minus (zero point times the row's levels), so that centring costs nothing. With two
/// bytes a level the low sums, which count once, carry it.
template <int Rows, int Tiles, bool Int4, bool Fine>
SPECRUNTIME_INLINE void start_sums(IntegerSums<Rows, Tiles, Fine>& sums, const uint8_t* record, const RowBlock* block,
                                   const IntegerTile& tile) {
    const int64_t row_blocks = tile.geometry->blocks;
    I16* starts = Fine ? sums.low : sums.high;
    if (tile.has_zeros) {
        SPECRUNTIME_UNROLL
        for (int t = 0; t < Tiles; ++t) {
            const I16 zeros = load_bytes16(record + t * tile.geometry->tile_bytes + tile.geometry->zero_offset);
            const I16 negative = set_int16(kOffset<Int4>) - zeros;
            SPECRUNTIME_UNROLL
            for (int row = 0; row < Rows; ++row) {
                starts[t * Rows + row] = negative * set_int16(block[row * row_blocks].levels);
            }
        }
    } else {
        SPECRUNTIME_UNROLL
        for (int row = 0; row < Rows; ++row) {
            const I16 start = set_int16(block[row * row_blocks].start);
            SPECRUNTIME_UNROLL
            for (int t = 0; t < Tiles; ++t) starts[t * Rows + row] = start;
        }
    }
    if constexpr (Fine) {
        SPECRUNTIME_UNROLL
        for (int i = 0; i < Tiles * Rows; ++i) sums.high[i] = zero_int16();
    }
}

/// y += the sums of a block, scaled.
template <int Rows, int Tiles, bool Int4, bool Fine, bool Minimum>
SPECRUNTIME_INLINE void scale_sums(const IntegerSums<Rows, Tiles, Fine>& sums, const uint8_t* record,
                                   const RowBlock* block, const IntegerTile& tile, F16* y) {
    const Geometry& geometry = *tile.geometry;
    SPECRUNTIME_UNROLL
    for (int t = 0; t < Tiles; ++t) {
        const uint8_t* from = record + t * geometry.tile_bytes;
        const F16 scale = load_scales(from + geometry.scale_offset, tile.half_scales);
        F16 centre = scale;
        if constexpr (Minimum) {  // the weight of the zero point's level
            const F16 zero =
                tile.has_zeros ? to_float(load_bytes16(from + geometry.zero_offset)) : set16(Int4 ? 8.0f : 128.0f);
            centre = fma(zero, scale, load_scales(from + geometry.minimum_offset, tile.half_scales));
        }
        SPECRUNTIME_UNROLL
        for (int row = 0; row < Rows; ++row) {
            const RowBlock& rounded = block[row * geometry.blocks];
            const int i = t * Rows + row;
            I16 sum = sums.high[i];
            if constexpr (Fine) sum = shift_left<7>(sum) + sums.low[i];
            y[i] = fma(to_float(sum) * set16(rounded.scale), scale, y[i]);
            if constexpr (Minimum) y[i] = fma(centre, set16(rounded.sum), y[i]);
        }
    }
}

/// results[tile * Rows + row] = the products of `Rows` rows with `Tiles` tiles, block after block in order.
template <int Rows, int Tiles, bool Int4, bool Fine, bool Minimum>
SPECRUNTIME_INLINE void integer_tiles(const IntegerTile& tile, F16* results) {
    const Geometry& geometry = *tile.geometry;
    F16 y[Tiles * Rows];  // apart from `results`, whose address is known elsewhere: these stay in registers
    SPECRUNTIME_UNROLL
    for (int i = 0; i < Tiles * Rows; ++i) y[i] = zero16();
    const uint8_t* record = tile.weights;
    int64_t k = 0;
    for (int64_t b = 0; b < geometry.blocks; ++b, record += geometry.record_bytes) {
        const RowBlock* block = tile.blocks + b;
        IntegerSums<Rows, Tiles, Fine> sums;
        start_sums<Rows, Tiles, Int4, Fine>(sums, record, block, tile);
        const uint8_t* values = record;
        for (const int64_t end = k + geometry.block; k < end; k += 16, values += Int4 ? 128 : 256) {
            add_sixteen<Rows, Tiles, Int4, Fine>(sums, values, tile, k);
        }
        SPECRUNTIME_UNROLL
        for (int t = 0; t < Tiles; ++t) prefetch(values + t * geometry.tile_bytes + kPrefetchDistance);
        scale_sums<Rows, Tiles, Int4, Fine, Minimum>(sums, record, block, tile, y);
    }
    SPECRUNTIME_UNROLL
    for (int i = 0; i < Tiles * Rows; ++i) results[i] = y[i];
}

}  // namespace SPECRUNTIME_ISA
}  // namespace specruntime
