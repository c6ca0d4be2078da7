// What matmul.cpp (compiled for the baseline) and the kernels of each instruction set pass to each other.
// Plain data and function pointers only: an inline function here could be kept as the copy compiled for AVX-512.
#pragma once

#include <cstddef>
#include <cstdint>

#include "matmul.h"

namespace specruntime {

/// Sizes that follow from a matrix.
struct Geometry {
    int64_t tiles;
    int64_t blocks;         // along the inputs; 1 with Rounding::rows, whose sums run over all inputs
    int64_t block;          // inputs a block, padded; all padded inputs with Rounding::rows
    int64_t padded_inputs;  // blocks * block; the float formats do not pad
    size_t scale_offset;    // in a record: where the scales lie, behind the values
    size_t zero_offset;
    size_t minimum_offset;
    size_t record_bytes;  // of a tile's block
    size_t tile_bytes;
};

/// Of one row and block: what its rounding left behind.
struct RowBlock {
    float scale;
    float sum;       // of the rounded values: scale * levels
    int32_t start;   // where the sum of products starts, so that levels of weights count from their zero point
    int32_t levels;  // sum of the row's levels
};

/// Rows rounded to bytes. Byte k of row r: high[r * stride + k]; the padding behind the inputs is zero up to `stride`.
struct RoundedRows {
    int8_t* high;
    int8_t* low;  // Rounding::fine: a level is 128 * high + low
    size_t stride;
    RowBlock* blocks;  // [rows][geometry.blocks]
};

/// One part of a product: some rows times some tiles.
struct ProductPart {
    const PackedMatrix* matrix;
    const Geometry* geometry;
    RoundedRows rows;  // integer formats
    const float* x;    // float formats: [rows, inputs]
    int64_t first_row, last_row;
    int64_t first_tile, last_tile;
    float* y;  // [rows, results]
    const float* bias;
    uint8_t* scratch;  // MatmulKernels::part_scratch bytes
};

struct RoundingPart {
    const PackedMatrix* matrix;
    const Geometry* geometry;
    const float* x;
    RoundedRows rows;
    int64_t first_row, last_row;
};

struct EmbeddingPart {
    const PackedMatrix* matrix;
    const Geometry* geometry;
    const int64_t* ids;
    int64_t first, last;
    float* y;
};

/// The functions of one path.
struct MatmulKernels {
    void (*round_rows)(const RoundingPart& part);
    void (*product)(const ProductPart& part);
    void (*embed)(const EmbeddingPart& part);
    /// Bytes of scratch memory that `product` needs for a part of so many rows.
    size_t (*part_scratch)(const PackedMatrix& matrix, const Geometry& geometry, int64_t rows);
};

}  // namespace specruntime
