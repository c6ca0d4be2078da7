// One part of a product: walks over tiles and groups of rows, and picks the kernel for each.
#pragma once

#include "finish.h"
#include "float_tile.h"
#include "integer_tile.h"

namespace specruntime {
namespace SPECRUNTIME_ISA {

/// The rows [first, last) in groups of nearly equal size, at most `most` each: calls group(row, count).
template <typename Group>
SPECRUNTIME_INLINE void in_groups(int64_t first, int64_t last, int64_t most, Group group) {
    for (int64_t left = (last - first + most - 1) / most; left > 0; --left) {
        const int64_t count = (last - first + left - 1) / left;
        group(first, static_cast<int>(count));
        first += count;
    }
}

/// The end of `Tiles` tiles from `t` on and `Rows` rows from `row` on.
template <int Rows, int Tiles>
SPECRUNTIME_INLINE void finish_tiles(const ProductPart& part, int64_t t, int64_t row, F16* sums) {
    const int64_t width = part.matrix->activation == Activation::none ? 16 : 8;
    for (int tile = 0; tile < Tiles; ++tile) {
        const Finish finish = finish_of(part, t + tile);
        finish_rows<Rows>(finish, sums + tile * Rows, part.y + row * finish.stride + (t + tile) * width);
    }
}

/// One call of the integer kernel: `Tiles` tiles from `t` on, `Rows` rows from `row` on.
template <int Rows, int Tiles, bool Int4, bool Fine, bool Minimum>
void integer_rows(const ProductPart& part, int64_t t, int64_t row) {
    const PackedMatrix& matrix = *part.matrix;
    const Geometry& geometry = *part.geometry;
    const size_t at = static_cast<size_t>(row) * part.rows.stride;
    IntegerTile tile = {};
    tile.weights = matrix.data + static_cast<size_t>(t) * geometry.tile_bytes;
    tile.high = part.rows.high + at;
    tile.low = Fine ? part.rows.low + at : tile.high;
    tile.row_stride = part.rows.stride;
    tile.blocks = part.rows.blocks + row * geometry.blocks;
    tile.geometry = &geometry;
    tile.has_zeros = matrix.has_zeros;
    tile.half_scales = matrix.scale_type == ScaleType::fp16;
    F16 sums[Tiles * Rows];
    integer_tiles<Rows, Tiles, Int4, Fine, Minimum>(tile, sums);
    finish_tiles<Rows, Tiles>(part, t, row, sums);
}

/// integer_rows for `rows` rows, found by counting down from the most a group has.
template <int Rows, int Tiles, bool Int4, bool Fine, bool Minimum>
SPECRUNTIME_INLINE void integer_group(int rows, const ProductPart& part, int64_t t, int64_t row) {
    if constexpr (Rows == 1) {
        integer_rows<1, Tiles, Int4, Fine, Minimum>(part, t, row);
    } else if (rows == Rows) {
        integer_rows<Rows, Tiles, Int4, Fine, Minimum>(part, t, row);
    } else {
        integer_group<Rows - 1, Tiles, Int4, Fine, Minimum>(rows, part, t, row);
    }
}

/// The rows of `part` times the tiles [first, last), `Tiles` at once, in groups of at most `Rows` rows.
template <int Rows, int Tiles, bool Int4, bool Fine, bool Minimum>
SPECRUNTIME_INLINE void integer_sweep(const ProductPart& part, int64_t first, int64_t last) {
    for (int64_t t = first; t < last; t += Tiles) {
        in_groups(part.first_row, part.last_row, Rows, [&](int64_t row, int count) {
            integer_group<Rows, Tiles, Int4, Fine, Minimum>(count, part, t, row);
        });
    }
}

template <bool Int4, bool Fine, bool Minimum>
void integer_product(const ProductPart& part) {
    constexpr int kRows = Fine ? kFineRows : kIntegerRows, kAlone = Fine ? kFineRowsAlone : kIntegerRowsAlone;
    const int64_t rows = part.last_row - part.first_row;
    int64_t together = (part.last_tile - part.first_tile) / kIntegerTiles * kIntegerTiles;
    if (kIntegerTiles == 1 || (rows > kRows && rows <= kAlone)) together = 0;
    const int64_t alone = part.first_tile + together;
    if constexpr (kIntegerTiles > 1) {
        integer_sweep<kRows, kIntegerTiles, Int4, Fine, Minimum>(part, part.first_tile, alone);
    }
    integer_sweep<kAlone, 1, Int4, Fine, Minimum>(part, alone, part.last_tile);
}

/// One call of the float kernel: `Tiles` tiles from `t` on, `Rows` rows from `row` on.
template <int Rows, int Tiles, Format Stored>
void float_rows(const ProductPart& part, int64_t t, int64_t row) {
    const PackedMatrix& matrix = *part.matrix;
    const size_t bytes = part.geometry->tile_bytes;
    F16 sums[Tiles * Rows];
    float_tiles<Rows, Tiles, Stored>(matrix.data + static_cast<size_t>(t) * bytes, bytes, part.x + row * matrix.inputs,
                                     matrix.inputs, sums);
    finish_tiles<Rows, Tiles>(part, t, row, sums);
}

template <int Rows, Format Stored>
SPECRUNTIME_INLINE void float_group(int rows, const ProductPart& part, int64_t t, int64_t row) {
    if constexpr (Rows == 1) {
        float_rows<1, 1, Stored>(part, t, row);
    } else if (rows == Rows) {
        float_rows<Rows, 1, Stored>(part, t, row);
    } else {
        float_group<Rows - 1, Stored>(rows, part, t, row);
    }
}

template <Format Stored>
void float_product(const ProductPart& part) {
    const int64_t rows = part.last_row - part.first_row;
    int64_t t = part.first_tile;
    if (rows == 1) {
        for (; t + 4 <= part.last_tile; t += 4) float_rows<1, 4, Stored>(part, t, part.first_row);
    } else if (rows == 2) {
        for (; t + 2 <= part.last_tile; t += 2) float_rows<2, 2, Stored>(part, t, part.first_row);
    }
    for (; t < part.last_tile; ++t) {
        in_groups(part.first_row, part.last_row, kFloatRows,
                  [&](int64_t row, int count) { float_group<kFloatRows, Stored>(count, part, t, row); });
    }
}

template <bool Int4, bool Fine>
SPECRUNTIME_INLINE void product_of_minimum(const ProductPart& part) {
    if (part.matrix->has_minimum) {
        integer_product<Int4, Fine, true>(part);
    } else {
        integer_product<Int4, Fine, false>(part);
    }
}

template <bool Int4>
SPECRUNTIME_INLINE void product_of_rounding(const ProductPart& part) {
    if (part.matrix->rounding == Rounding::fine) {
        product_of_minimum<Int4, true>(part);
    } else {
        product_of_minimum<Int4, false>(part);
    }
}

inline void product(const ProductPart& part) {
    switch (part.matrix->format) {
        case Format::int8:
            product_of_rounding<false>(part);
            break;
        case Format::int4:
            product_of_rounding<true>(part);
            break;
        case Format::fp32:
            float_product<Format::fp32>(part);
            break;
        case Format::fp16:
            float_product<Format::fp16>(part);
            break;
        case Format::bf16:
            float_product<Format::bf16>(part);
            break;
    }
}

}  // namespace SPECRUNTIME_ISA
}  // namespace specruntime
