// Rows of the packed matrix as floats: an embedding table that shares the bytes of the head.
#pragma once

#include "float_tile.h"
#include "integer_tile.h"

namespace specruntime {
namespace SPECRUNTIME_ISA {

/// The four levels of one output in a step (int8: 64 bytes a step; int4: 64 bytes two steps).
template <bool Int4>
SPECRUNTIME_INLINE uint8_t level_at(const uint8_t* values, int64_t k, int64_t output) {
    if constexpr (Int4) {
        const uint8_t both = values[k / 8 * 64 + output * 4 + k % 4];
        return k % 8 < 4 ? both & 15 : both >> 4;
    } else {
        return values[k / 4 * 64 + output * 4 + k % 4];
    }
}

template <bool Int4>
void embed_integers(const PackedMatrix& matrix, const Geometry& geometry, int64_t id, float* y) {
    const uint8_t* record = matrix.data + static_cast<size_t>(id / 16) * geometry.tile_bytes;
    const int64_t output = id % 16;
    const bool half = matrix.scale_type == ScaleType::fp16;
    for (int64_t b = 0; b < geometry.blocks; ++b, record += geometry.record_bytes) {
        float scales[16], minima[16] = {};
        store(scales, load_scales(record + geometry.scale_offset, half));
        if (matrix.has_minimum) store(minima, load_scales(record + geometry.minimum_offset, half));
        const int zero = matrix.has_zeros ? record[geometry.zero_offset + static_cast<size_t>(output)] : Int4 ? 8 : 128;
        const F8 scale = set8(scales[output]);
        const F8 centre = fma(set8(static_cast<float>(zero)), scale, set8(minima[output]));
        const int64_t first = b * geometry.block, valid = smaller(geometry.block, matrix.inputs - first);
        for (int64_t k = 0; k < valid; k += 8) {
            float levels[8] = {};
            for (int64_t i = 0; i < 8; ++i)
                levels[i] = static_cast<float>(level_at<Int4>(record, k + i, output) - zero);
            float weights[8];
            store(weights, matrix.has_minimum ? fma(scale, load8(levels), centre) : scale * load8(levels));
            for (int64_t i = 0; i < 8 && k + i < valid; ++i) y[first + k + i] = weights[i];
        }
    }
}

template <Format Stored>
void embed_floats(const PackedMatrix& matrix, const Geometry& geometry, int64_t id, float* y) {
    const uint8_t* weights = matrix.data + static_cast<size_t>(id / 16) * geometry.tile_bytes;
    for (int64_t k = 0; k < matrix.inputs; ++k) {
        float all[16];
        store(all, load_weights<Stored>(weights + static_cast<size_t>(k) * 16 * kFloatBytes<Stored>));
        y[k] = all[id % 16];
    }
}

inline void embed(const EmbeddingPart& part) {
    const PackedMatrix& matrix = *part.matrix;
    for (int64_t i = part.first; i < part.last; ++i) {
        float* y = part.y + i * matrix.inputs;
        switch (matrix.format) {
            case Format::int8:
                embed_integers<false>(matrix, *part.geometry, part.ids[i], y);
                break;
            case Format::int4:
                embed_integers<true>(matrix, *part.geometry, part.ids[i], y);
                break;
            case Format::fp32:
                embed_floats<Format::fp32>(matrix, *part.geometry, part.ids[i], y);
                break;
            case Format::fp16:
                embed_floats<Format::fp16>(matrix, *part.geometry, part.ids[i], y);
                break;
            case Format::bf16:
                embed_floats<Format::bf16>(matrix, *part.geometry, part.ids[i], y);
                break;
        }
    }
}

}  // namespace SPECRUNTIME_ISA
}  // namespace specruntime
