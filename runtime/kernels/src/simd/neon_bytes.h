// Products of weight bytes (unsigned levels) and row bytes (signed), summed exactly: see avx_bytes.h for the idea.
// sdot takes signed bytes, so int8 levels are taken minus 128; usdot, which comes with i8mm, takes them as they are.
#pragma once

#include "neon.h"
#include "pair.h"

namespace specruntime {
namespace SPECRUNTIME_ISA {

#if defined(SPECRUNTIME_I8MM)
template <bool Int4>
constexpr int kOffset = 0;
#else
template <bool Int4>
constexpr int kOffset = Int4 ? 0 : 128;
#endif

struct RowBytes {
    int8x16_t v;  // four bytes of a row, in every lane
};
SPECRUNTIME_INLINE RowBytes row_bytes(const int8_t* from) {
    return {vreinterpretq_s8_s32(vdupq_n_s32(read<int32_t>(from)))};
}

/// Sixteen outputs times four inputs.
template <bool Int4>
struct WeightBytes {
    uint8x16_t v[4];
};

SPECRUNTIME_INLINE int32x4_t dot(int32x4_t sum, uint8x16_t weights, int8x16_t row) {
#if defined(SPECRUNTIME_I8MM)
    return vusdotq_s32(sum, weights, row);
#else
    return vdotq_s32(sum, vreinterpretq_s8_u8(weights), row);
#endif
}
template <bool Int4>
SPECRUNTIME_INLINE I16 dot(I16 sum, const WeightBytes<Int4>& weights, RowBytes row) {
    return {{dot(sum.low.a, weights.v[0], row.v), dot(sum.low.b, weights.v[1], row.v)},
            {dot(sum.high.a, weights.v[2], row.v), dot(sum.high.b, weights.v[3], row.v)}};
}

/// The levels of one step of int8: 64 bytes.
SPECRUNTIME_INLINE WeightBytes<false> load_step(const uint8_t* from) {
    WeightBytes<false> weights;
    for (int i = 0; i < 4; ++i) {
        weights.v[i] = vld1q_u8(from + 16 * i);
        if (kOffset<false> != 0) weights.v[i] = veorq_u8(weights.v[i], vdupq_n_u8(128));
    }
    return weights;
}

/// The levels of two steps of int4: 64 bytes, the first step in the low nibbles.
SPECRUNTIME_INLINE void load_two_steps(const uint8_t* from, WeightBytes<true>* first, WeightBytes<true>* second) {
    for (int i = 0; i < 4; ++i) {
        const uint8x16_t both = vld1q_u8(from + 16 * i);
        first->v[i] = vandq_u8(both, vdupq_n_u8(15));
        second->v[i] = vshrq_n_u8(both, 4);
    }
}

}  // namespace SPECRUNTIME_ISA
}  // namespace specruntime
