// Weights of one chunk of keys, and how chunks become one row.
#pragma once
#include <cmath>

#include "../simd/math.h"
#include "kernels.h"

namespace specruntime {
namespace SPECRUNTIME_ISA {

// A sum of weighted values, less the factor exp(maximum), and the sum of those weights.
struct Merged {
    float* out;
    float* maximum;
    float* sum;
};

constexpr float nothing_seen = -INFINITY;

inline float exp_of_difference(float x, float above) {
    return Lanes8::first(exp_negative<Lanes8>(Lanes8::all(x - above)));
}

// softcap * tanh(score / softcap), for whole vectors around begin..end.
template <class V>
inline void cap_scores(float* scores, int begin, int end, float softcap) {
    const auto cap = V::all(softcap);
    for (int k = begin / V::size * V::size; k < end; k += V::size) {
        V::store(scores + k, V::mul(tanh<V>(V::div(V::load(scores + k), cap)), cap));
    }
}

// Scores of begin..end to exp(score - maximum), masked ones (minus infinity) to 0. Key k adds to sum k % 8 of eight, so
// that keys which are not seen change nothing. What is stored has the scale of the key's value as a factor, where
// values have scales (`scaled`); the sum has not.
template <class V, bool scaled>
inline void weigh_scores(float* scores, int begin, int end, const float* value_scales, float* maximum, float* sum) {
    const int from = begin / V::size * V::size, to = (end + V::size - 1) / V::size * V::size;
    for (int k = from; k < begin; ++k) scores[k] = nothing_seen;
    for (int k = end; k < to; ++k) scores[k] = nothing_seen;
    auto highest = V::all(nothing_seen);
    for (int k = from; k < to; k += V::size) highest = V::max(highest, V::load(scores + k));
    *maximum = V::highest(highest);
    *sum = 0;
    if (*maximum == nothing_seen) return;
    const auto above = V::all(*maximum);
    auto sums = Lanes8::zero();
    for (int k = from; k < to; k += V::size) {
        const auto score = V::load(scores + k);
        const auto weight = V::zero_where_masked(score, exp_negative<V>(V::sub(score, above)));
        V::store(scores + k, scaled ? V::mul(weight, V::load(value_scales + k)) : weight);
        sums = V::accumulate(sums, weight);
    }
    *sum = Lanes8::sum(sums);
}

// Add the next chunk of a row to what the chunks before it gave.
inline void merge_chunk(const Merged& row, const Merged& chunk, int size) {
    if (*chunk.maximum == nothing_seen) return;
    if (*row.maximum == nothing_seen) {
        *row.maximum = *chunk.maximum;
        *row.sum = *chunk.sum;
        for (int d = 0; d < size; d += 8) Lanes8::store(row.out + d, Lanes8::load(chunk.out + d));
    } else if (*chunk.maximum <= *row.maximum) {
        const auto factor = Lanes8::all(exp_of_difference(*chunk.maximum, *row.maximum));
        *row.sum = Lanes8::first(Lanes8::fma(Lanes8::all(*chunk.sum), factor, Lanes8::all(*row.sum)));
        for (int d = 0; d < size; d += 8) {
            Lanes8::store(row.out + d, Lanes8::fma(Lanes8::load(chunk.out + d), factor, Lanes8::load(row.out + d)));
        }
    } else {
        const auto factor = Lanes8::all(exp_of_difference(*row.maximum, *chunk.maximum));
        *row.maximum = *chunk.maximum;
        *row.sum = Lanes8::first(Lanes8::fma(Lanes8::all(*row.sum), factor, Lanes8::all(*chunk.sum)));
        for (int d = 0; d < size; d += 8) {
            Lanes8::store(row.out + d, Lanes8::fma(Lanes8::load(row.out + d), factor, Lanes8::load(chunk.out + d)));
        }
    }
}

// Divide by the sum of weights, to which a sink adds its own. A row that sees nothing gets zeros.
inline void finish_row(const Merged& row, int size, const float* sink, float* out) {
    float sum = *row.sum, factor = 1;
    if (*row.maximum == nothing_seen) {
        factor = 0, sum = 1;
    } else if (sink != nullptr && *sink <= *row.maximum) {
        sum = sum + exp_of_difference(*sink, *row.maximum);
    } else if (sink != nullptr) {
        factor = exp_of_difference(*row.maximum, *sink);
        sum = sum * factor + 1.0f;
    }
    const auto inverse = Lanes8::all(factor / sum);
    for (int d = 0; d < size; d += 8) Lanes8::store(out + d, Lanes8::mul(Lanes8::load(row.out + d), inverse));
}

}  // namespace SPECRUNTIME_ISA
}  // namespace specruntime
