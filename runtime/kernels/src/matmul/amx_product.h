// Many rows times int8 or int4 weights on AMX tiles: sixteen rows and sixteen outputs at once, up to 64 inputs deep.
//
// The tile unit only makes the exact integer sums of a block; scales, minima and their order are those of the other
// kernels, so the results have the same bits. Weights of one tile are unpacked once, as signed bytes around their zero
// point, for all rows of the part.
#pragma once

#include "embedding.h"
#include "product.h"
#include "rounding.h"

namespace specruntime {
namespace SPECRUNTIME_ISA {

constexpr int64_t kTileRows = 16;
constexpr int64_t kTileDepth = 64;  // bytes a row of a tile register

SPECRUNTIME_INLINE void written_before_tile_loads() {
#if !defined(_MSC_VER)
    __asm__ volatile("" ::: "memory");  // GCC 12's tile loads do not say that they read memory
#endif
}

/// Where a part's unpacked numbers lie in its scratch memory; each piece starts on a cache line.
struct AmxScratch {
    int8_t* weights;    // [inputs / 4][16 outputs][4], of one tile
    float* scales;      // [blocks][16 outputs], of one tile
    float* centres;     // the same: weights of the zero points, where there is a minimum
    float* row_scales;  // [groups][blocks][16 rows]
    float* row_sums;    // the same
};

SPECRUNTIME_INLINE int64_t depth_of(const Geometry& geometry) { return smaller(geometry.block, kTileDepth); }

/// Inputs, padded to whole tile registers (only Rounding::rows pads here: its one block may end in half a register).
SPECRUNTIME_INLINE int64_t amx_inputs(const Geometry& geometry) {
    const int64_t depth = depth_of(geometry);
    return (geometry.padded_inputs + depth - 1) / depth * depth;
}

/// Whether a part of so many rows is faster on tiles. Unpacking the weights pays from many rows on, sooner where each
/// row makes two products. A table, as measured on an Intel server: the bits are the same either way.
inline bool takes_tiles(const PackedMatrix& matrix, int64_t rows) {
    if (matrix.rounding == Rounding::unrounded) return false;
    // Levels of 8 bits less a zero point of their own do not fit a signed byte.
    if (matrix.format == Format::int8 && matrix.has_zeros) return false;
    return rows >= (matrix.rounding == Rounding::fine ? 48 : 96);
}

inline size_t amx_scratch(const PackedMatrix& matrix, const Geometry& geometry, int64_t rows) {
    if (!takes_tiles(matrix, rows)) return 0;
    const auto blocks = static_cast<size_t>(geometry.blocks), groups = static_cast<size_t>(rows / kTileRows);
    return static_cast<size_t>(amx_inputs(geometry)) * 16 + (2 + 2 * groups) * blocks * 64;
}

inline AmxScratch lay_out(const ProductPart& part) {
    const Geometry& geometry = *part.geometry;
    const int64_t floats = geometry.blocks * 16, groups = (part.last_row - part.first_row) / kTileRows;
    AmxScratch scratch = {};
    scratch.weights = reinterpret_cast<int8_t*>(part.scratch);
    scratch.scales = reinterpret_cast<float*>(part.scratch + amx_inputs(geometry) * 16);
    scratch.centres = scratch.scales + floats;
    scratch.row_scales = scratch.centres + floats;
    scratch.row_sums = scratch.row_scales + groups * floats;
    return scratch;
}

/// The row scales and sums of sixteen rows side by side, as the end of a block reads them.
inline void gather_rows(const ProductPart& part, const AmxScratch& scratch) {
    const int64_t blocks = part.geometry->blocks, groups = (part.last_row - part.first_row) / kTileRows;
    for (int64_t row = 0; row < groups * kTileRows; ++row) {
        const RowBlock* from = part.rows.blocks + (part.first_row + row) * blocks;
        const int64_t at = row / kTileRows * blocks * 16 + row % kTileRows;
        for (int64_t b = 0; b < blocks; ++b) {
            scratch.row_scales[at + b * 16] = from[b].scale;
            scratch.row_sums[at + b * 16] = from[b].sum;
        }
    }
}

template <bool Int4>
inline void unpack_values(const uint8_t* from, int64_t block, __m512i zeros, int8_t* to) {
    if constexpr (Int4) {
        for (int64_t k = 0; k < block; k += 8, from += 64, to += 128) {
            WeightBytes<true> first, second;
            load_two_steps(from, &first, &second);
            _mm512_storeu_si512(to, _mm512_sub_epi8(first.v, zeros));
            _mm512_storeu_si512(to + 64, _mm512_sub_epi8(second.v, zeros));
        }
    } else {
        for (int64_t k = 0; k < block; k += 4, from += 64, to += 64) {
            _mm512_storeu_si512(to, _mm512_sub_epi8(_mm512_loadu_si512(from), zeros));
        }
    }
}

/// Unpack the tile at `record`.
template <bool Int4>
inline void unpack_tile(const PackedMatrix& matrix, const Geometry& geometry, const uint8_t* record,
                        const AmxScratch& scratch) {
    const bool half = matrix.scale_type == ScaleType::fp16;
    for (int64_t b = 0; b < geometry.blocks; ++b, record += geometry.record_bytes) {
        I16 zeros = set_int16(Int4 ? 8 : 128);
        if (matrix.has_zeros) zeros = load_bytes16(record + geometry.zero_offset);
        const I16 in_each_byte = zeros * set_int16(0x01010101);
        unpack_values<Int4>(record, geometry.block, in_each_byte.v, scratch.weights + b * geometry.block * 16);
        const F16 scale = load_scales(record + geometry.scale_offset, half);
        store(scratch.scales + b * 16, scale);
        if (!matrix.has_minimum) continue;
        const F16 minimum = load_scales(record + geometry.minimum_offset, half);
        store(scratch.centres + b * 16, fma(to_float(zeros), scale, minimum));
    }
    const int64_t padding = amx_inputs(geometry) - geometry.padded_inputs;
    std::memset(scratch.weights + geometry.padded_inputs * 16, 0, static_cast<size_t>(padding) * 16);
}

/// Registers 0 to 3 hold sums, 4 and 5 rows, 6 and 7 weights.
inline void configure_tiles(int64_t depth) {
    struct {
        uint8_t palette = 1, start = 0, reserved[14] = {};
        uint16_t row_bytes[16] = {};
        uint8_t rows[16] = {};
    } shape;
    for (int i = 0; i < 8; ++i) {
        shape.row_bytes[i] = static_cast<uint16_t>(i == 4 || i == 5 ? depth : 64);
        shape.rows[i] = static_cast<uint8_t>(i < 6 ? 16 : depth / 4);
    }
    _tile_loadconfig(&shape);
}

/// The integer sums of one block: [rows][outputs], with Fine a second one of the low bytes.
struct BlockSums {
    alignas(64) int32_t high[256];
    alignas(64) int32_t low[256];
};

/// Sum one block. Odd and even blocks have registers of their own, so that one need not wait for the other.
template <bool Fine, bool Odd>
SPECRUNTIME_INLINE void sum_block(const int8_t* weights, const int8_t* high, const int8_t* low, size_t stride,
                                  int64_t block, int64_t depth, BlockSums* sums) {
    // The numbers of tile registers must be literals.
    if constexpr (Odd) {
        _tile_zero(2);
        if constexpr (Fine) _tile_zero(3);
    } else {
        _tile_zero(0);
        if constexpr (Fine) _tile_zero(1);
    }
    for (int64_t k = 0; k < block; k += depth) {
        if constexpr (Odd) {
            _tile_loadd(7, weights + k * 16, 64);
            _tile_loadd(5, high + k, stride);
            _tile_dpbssd(2, 5, 7);
            if constexpr (Fine) {
                _tile_loadd(5, low + k, stride);
                _tile_dpbssd(3, 5, 7);
            }
        } else {
            _tile_loadd(6, weights + k * 16, 64);
            _tile_loadd(4, high + k, stride);
            _tile_dpbssd(0, 4, 6);
            if constexpr (Fine) {
                _tile_loadd(4, low + k, stride);
                _tile_dpbssd(1, 4, 6);
            }
        }
    }
    if constexpr (Odd) {
        _tile_stored(2, sums->high, 64);
        if constexpr (Fine) _tile_stored(3, sums->low, 64);
    } else {
        _tile_stored(0, sums->high, 64);
        if constexpr (Fine) _tile_stored(1, sums->low, 64);
    }
}

template <bool Fine, bool Minimum>
SPECRUNTIME_INLINE void add_block(const BlockSums& sums, const float* row_scales, const float* row_sums, F16 scale,
                                  F16 centre, F16* y) {
    repeat<16>([&](auto row) SPECRUNTIME_INLINE_LAMBDA {
        I16 sum = {_mm512_load_si512(sums.high + row * 16)};
        if constexpr (Fine) sum = shift_left<7>(sum) + I16{_mm512_load_si512(sums.low + row * 16)};
        y[row] = fma(to_float(sum) * set16(row_scales[row]), scale, y[row]);
        if constexpr (Minimum) y[row] = fma(centre, set16(row_sums[row]), y[row]);
    });
}

/// results[row] of sixteen rows with one unpacked tile. The tile unit works on a block while the block before it is
/// scaled.
template <bool Fine, bool Minimum>
SPECRUNTIME_INLINE void amx_tile(const ProductPart& part, const AmxScratch& scratch, int64_t group, F16* results) {
    const Geometry& geometry = *part.geometry;
    const int64_t blocks = geometry.blocks, block = geometry.block, depth = depth_of(geometry);
    const size_t stride = part.rows.stride, first = static_cast<size_t>(part.first_row + group * kTileRows) * stride;
    const int8_t* high = part.rows.high + first;
    const int8_t* low = Fine ? part.rows.low + first : high;
    const float* row_scales = scratch.row_scales + group * blocks * 16;
    const float* row_sums = scratch.row_sums + group * blocks * 16;
    BlockSums sums[2];
    F16 y[16];
    repeat<16>([&](auto row) SPECRUNTIME_INLINE_LAMBDA { y[row] = zero16(); });
    const auto sum = [&](auto odd, int64_t b) SPECRUNTIME_INLINE_LAMBDA {
        const int64_t k = b * block;
        if (b >= blocks) return;
        sum_block<Fine, odd != 0>(scratch.weights + k * 16, high + k, low + k, stride, block, depth, &sums[odd]);
    };
    const auto add = [&](auto odd, int64_t b) SPECRUNTIME_INLINE_LAMBDA {
        if (b >= blocks) return;
        F16 centre = zero16();
        if constexpr (Minimum) centre = load16(scratch.centres + b * 16);
        add_block<Fine, Minimum>(sums[odd], row_scales + b * 16, row_sums + b * 16, load16(scratch.scales + b * 16),
                                 centre, y);
    };
    sum(Index<0>(), 0);
    for (int64_t b = 0; b < blocks; b += 2) {
        sum(Index<1>(), b + 1);
        add(Index<0>(), b);
        sum(Index<0>(), b + 2);
        add(Index<1>(), b + 1);
    }
    repeat<16>([&](auto row) SPECRUNTIME_INLINE_LAMBDA { results[row] = y[row]; });
}

template <bool Int4, bool Fine, bool Minimum>
void amx_product(const ProductPart& part) {
    const PackedMatrix& matrix = *part.matrix;
    const Geometry& geometry = *part.geometry;
    const AmxScratch scratch = lay_out(part);
    const int64_t width = matrix.activation == Activation::none ? 16 : 8;
    const int64_t groups = (part.last_row - part.first_row) / kTileRows;
    gather_rows(part, scratch);
    configure_tiles(depth_of(geometry));
    for (int64_t t = part.first_tile; t < part.last_tile; ++t) {
        unpack_tile<Int4>(matrix, geometry, matrix.data + static_cast<size_t>(t) * geometry.tile_bytes, scratch);
        written_before_tile_loads();
        const Finish finish = finish_of(part, t);
        for (int64_t group = 0; group < groups; ++group) {
            F16 y[16];
            amx_tile<Fine, Minimum>(part, scratch, group, y);
            finish_rows<16>(finish, y, part.y + (part.first_row + group * 16) * finish.stride + t * width);
        }
    }
    _tile_release();
    ProductPart rest = part;  // fewer than sixteen rows
    rest.first_row += groups * kTileRows;
    if (rest.first_row < rest.last_row) integer_product<Int4, Fine, Minimum>(rest);
}

template <bool Int4, bool Fine>
SPECRUNTIME_INLINE void amx_product_of_minimum(const ProductPart& part) {
    if (part.matrix->has_minimum) {
        amx_product<Int4, Fine, true>(part);
    } else {
        amx_product<Int4, Fine, false>(part);
    }
}

inline void product_with_tiles(const ProductPart& part) {
    const PackedMatrix& matrix = *part.matrix;
    const bool int4 = matrix.format == Format::int4, fine = matrix.rounding == Rounding::fine;
    if (!takes_tiles(matrix, part.last_row - part.first_row)) {
        product(part);
    } else if (int4) {
        fine ? amx_product_of_minimum<true, true>(part) : amx_product_of_minimum<true, false>(part);
    } else {
        fine ? amx_product_of_minimum<false, true>(part) : amx_product_of_minimum<false, false>(part);
    }
}

constexpr MatmulKernels kAmxKernels = {round_rows, product_with_tiles, embed, amx_scratch};

}  // namespace SPECRUNTIME_ISA
}  // namespace specruntime
