// What happens to a tile's 16 sums at the end: bias, activation, and the store of the outputs that exist.
#pragma once

#include "../simd/common.h"
#include "activation.h"
#include "kernels.h"

namespace specruntime {
namespace SPECRUNTIME_ISA {

/// Where the results of one tile go.
struct Finish {
    Activation activation;
    int64_t valid;   // outputs of the tile that exist: 16, fewer in the last; gated: pairs, at most 8
    int64_t stride;  // floats from a row of y to the next
    bool has_bias;
    float bias[16];  // as the tile's outputs lie
};

inline Finish finish_of(const ProductPart& part, int64_t tile) {
    const PackedMatrix& matrix = *part.matrix;
    const bool gated = matrix.activation != Activation::none;
    const int64_t width = gated ? 8 : 16, count = gated ? matrix.outputs / 2 : matrix.outputs;
    const int64_t first = tile * width;
    Finish finish = {matrix.activation, smaller(width, count - first), count, part.bias != nullptr, {}};
    if (finish.has_bias) {
        for (int64_t i = 0; i < finish.valid; ++i) {
            finish.bias[i] = part.bias[first + i];
            if (gated) finish.bias[8 + i] = part.bias[count + first + i];
        }
    }
    return finish;
}

SPECRUNTIME_INLINE F8 gate(Activation activation, F8 x) {
    if (activation == Activation::silu) return silu(x);
    if (activation == Activation::gelu) return gelu(x);
    return gelu_tanh(x);
}

template <int Rows>
SPECRUNTIME_INLINE void finish_rows(const Finish& finish, F16* sums, float* y) {
    if (finish.has_bias) {
        const F16 bias = load16(finish.bias);
        repeat<Rows>([&](auto row) SPECRUNTIME_INLINE_LAMBDA { sums[row] = sums[row] + bias; });
    }
    if (finish.activation == Activation::none && finish.valid == 16) {
        repeat<Rows>([&](auto row) SPECRUNTIME_INLINE_LAMBDA { store(y + row * finish.stride, sums[row]); });
        return;
    }
    for (int row = 0; row < Rows; ++row) {
        float results[16];
        if (finish.activation == Activation::none) {
            store(results, sums[row]);
        } else {
            store(results, gate(finish.activation, low_half(sums[row])) * high_half(sums[row]));
        }
        float* to = y + row * finish.stride;
        for (int64_t i = 0; i < finish.valid; ++i) to[i] = results[i];
    }
}

}  // namespace SPECRUNTIME_ISA
}  // namespace specruntime
