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
    repeat<Rows>([&](auto row) SPECRUNTIME_INLINE_LAMBDA {
        const RowBytes high = row_bytes(tile.high + k + row * tile.row_stride);
        repeat<Tiles>([&](auto t) SPECRUNTIME_INLINE_LAMBDA {
            sums.high[t * Rows + row] = dot<Int4>(sums.high[t * Rows + row], weights[t], high);
        });
        if constexpr (Fine) {
            const RowBytes low = row_bytes(tile.low + k + row * tile.row_stride);
            repeat<Tiles>([&](auto t) SPECRUNTIME_INLINE_LAMBDA {
                sums.low[t * Rows + row] = dot<Int4>(sums.low[t * Rows + row], weights[t], low);
            });
        }
    });
}

/// Add the products of sixteen inputs from `k` on, whose weights lie at `values` in the first tile.
template <int Rows, int Tiles, bool Int4, bool Fine>
SPECRUNTIME_INLINE void add_sixteen(IntegerSums<Rows, Tiles, Fine>& sums, const uint8_t* values,
                                    const IntegerTile& tile, int64_t k) {
    constexpr int kBytes = Int4 ? 128 : 256;
    const size_t next_tile = tile.geometry->tile_bytes;
    repeat<Tiles>([&](auto t) SPECRUNTIME_INLINE_LAMBDA {
        repeat<kBytes / 64>([&](auto line) SPECRUNTIME_INLINE_LAMBDA {
            prefetch(values + t * next_tile + kPrefetchDistance + line * 64);
        });
    });
    if constexpr (Int4) {
        repeat<2>([&](auto unit) SPECRUNTIME_INLINE_LAMBDA {
            WeightBytes<true> first[Tiles], second[Tiles];
            repeat<Tiles>([&](auto t) SPECRUNTIME_INLINE_LAMBDA {
                load_two_steps(values + t * next_tile + unit * 64, &first[t], &second[t]);
            });
            add_step<Rows, Tiles, true, Fine>(sums, first, tile, k + unit * 8);
            add_step<Rows, Tiles, true, Fine>(sums, second, tile, k + unit * 8 + 4);
        });
    } else {
        repeat<4>([&](auto step) SPECRUNTIME_INLINE_LAMBDA {
            WeightBytes<false> weights[Tiles];
            repeat<Tiles>(
                [&](auto t) SPECRUNTIME_INLINE_LAMBDA { weights[t] = load_step(values + t * next_tile + step * 64); });
            add_step<Rows, Tiles, false, Fine>(sums, weights, tile, k + step * 4);
        });
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
        repeat<Tiles>([&](auto t) SPECRUNTIME_INLINE_LAMBDA {
            const I16 zeros = load_bytes16(record + t * tile.geometry->tile_bytes + tile.geometry->zero_offset);
            const I16 negative = set_int16(kOffset<Int4>) - zeros;
            repeat<Rows>([&](auto row) SPECRUNTIME_INLINE_LAMBDA {
                starts[t * Rows + row] = negative * set_int16(block[row * row_blocks].levels);
            });
        });
    } else {
        repeat<Rows>([&](auto row) SPECRUNTIME_INLINE_LAMBDA {
            const I16 start = set_int16(block[row * row_blocks].start);
            repeat<Tiles>([&](auto t) SPECRUNTIME_INLINE_LAMBDA { starts[t * Rows + row] = start; });
        });
    }
    if constexpr (Fine) {
        repeat<Tiles * Rows>([&](auto i) SPECRUNTIME_INLINE_LAMBDA { sums.high[i] = zero_int16(); });
    }
}

/// y += the sums of a block, scaled.
template <int Rows, int Tiles, bool Int4, bool Fine, bool Minimum>
SPECRUNTIME_INLINE void scale_sums(const IntegerSums<Rows, Tiles, Fine>& sums, const uint8_t* record,
                                   const RowBlock* block, const IntegerTile& tile, F16* y) {
    const Geometry& geometry = *tile.geometry;
    repeat<Tiles>([&](auto t) SPECRUNTIME_INLINE_LAMBDA {
        const uint8_t* from = record + t * geometry.tile_bytes;
        const F16 scale = load_scales(from + geometry.scale_offset, tile.half_scales);
        F16 centre = scale;
        if constexpr (Minimum) {  // the weight of the zero point's level
            const F16 zero =
                tile.has_zeros ? to_float(load_bytes16(from + geometry.zero_offset)) : set16(Int4 ? 8.0f : 128.0f);
            centre = fma(zero, scale, load_scales(from + geometry.minimum_offset, tile.half_scales));
        }
        repeat<Rows>([&](auto row) SPECRUNTIME_INLINE_LAMBDA {
            const RowBlock& rounded = block[row * geometry.blocks];
            const int i = t * Rows + row;
            I16 sum = sums.high[i];
            if constexpr (Fine) sum = shift_left<7>(sum) + sums.low[i];
            y[i] = fma(to_float(sum) * set16(rounded.scale), scale, y[i]);
            if constexpr (Minimum) y[i] = fma(centre, set16(rounded.sum), y[i]);
        });
    });
}

/// results[tile * Rows + row] = the products of `Rows` rows with `Tiles` tiles, block after block in order.
template <int Rows, int Tiles, bool Int4, bool Fine, bool Minimum>
SPECRUNTIME_INLINE void integer_tiles(const IntegerTile& tile, F16* results) {
    const Geometry& geometry = *tile.geometry;
    F16 y[Tiles * Rows];  // apart from `results`, whose address is known elsewhere: these stay in registers
    repeat<Tiles * Rows>([&](auto i) SPECRUNTIME_INLINE_LAMBDA { y[i] = zero16(); });
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
        repeat<Tiles>(
            [&](auto t) SPECRUNTIME_INLINE_LAMBDA { prefetch(values + t * geometry.tile_bytes + kPrefetchDistance); });
        scale_sums<Rows, Tiles, Int4, Fine, Minimum>(sums, record, block, tile, y);
    }
    repeat<Tiles * Rows>([&](auto i) SPECRUNTIME_INLINE_LAMBDA { results[i] = y[i]; });
}

}  // namespace SPECRUNTIME_ISA
}  // namespace specruntime
