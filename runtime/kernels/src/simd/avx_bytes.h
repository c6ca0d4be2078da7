// Products of weight bytes (unsigned levels) and row bytes (signed, -127..127) in ymm registers, summed exactly.
//
// Sixteen outputs times four inputs are 64 bytes of weights. dot() adds to each output's sum the four products of
// (level - kOffset<Int4>): paths without an unsigned-by-signed instruction take the levels of int8 as signed ones.
#pragma once

#include "avx.h"
#include "pair.h"

namespace specruntime {
namespace SPECRUNTIME_ISA {

struct RowBytes {
    __m256i v;  // four bytes of a row, in every lane
};
SPECRUNTIME_INLINE RowBytes row_bytes(const int8_t* from) { return {_mm256_set1_epi32(read<int32_t>(from))}; }

#if defined(SPECRUNTIME_AVX512VNNI) || defined(SPECRUNTIME_AVXVNNI)

template <bool Int4>
constexpr int kOffset = 0;

template <bool Int4>
struct WeightBytes {
    __m256i low, high;
};
template <bool Int4>
SPECRUNTIME_INLINE WeightBytes<Int4> weight_bytes(__m256i low, __m256i high) {
    return {low, high};
}
SPECRUNTIME_INLINE __m256i dot(__m256i sum, __m256i weights, __m256i row) {
#if defined(SPECRUNTIME_AVX512VNNI)
    return _mm256_dpbusd_epi32(sum, weights, row);
#else
    return _mm256_dpbusd_avx_epi32(sum, weights, row);
#endif
}
template <bool Int4>
SPECRUNTIME_INLINE I16 dot(I16 sum, const WeightBytes<Int4>& weights, RowBytes row) {
    return {{dot(sum.low.v, weights.low, row.v)}, {dot(sum.high.v, weights.high, row.v)}};
}

#else

// vpmaddubsw adds two products in 16 bits and saturates: 2 * 255 * 127 does not fit, 2 * 128 * 127 does. So int8 levels
// are taken minus 128, as a magnitude, and their sign goes to the row's bytes. For 4 bits nothing can saturate.
template <bool Int4>
constexpr int kOffset = Int4 ? 0 : 128;

template <bool Int4>
struct WeightBytes {
    __m256i low, high;
};
template <>
struct WeightBytes<false> {
    __m256i low, high;  // level - 128
    __m256i low_magnitude, high_magnitude;
};
template <bool Int4>
SPECRUNTIME_INLINE WeightBytes<Int4> weight_bytes(__m256i low, __m256i high) {
    if constexpr (Int4) {
        return {low, high};
    } else {
        const __m256i centre = _mm256_set1_epi8(-128);
        low = _mm256_xor_si256(low, centre);
        high = _mm256_xor_si256(high, centre);
        return {low, high, _mm256_abs_epi8(low), _mm256_abs_epi8(high)};
    }
}
SPECRUNTIME_INLINE __m256i widen_pairs(__m256i sum, __m256i pairs) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
template <bool Int4>
SPECRUNTIME_INLINE I16 dot(I16 sum, const WeightBytes<Int4>& weights, RowBytes row) {
    __m256i low, high;
    if constexpr (Int4) {
        low = _mm256_maddubs_epi16(weights.low, row.v);
        high = _mm256_maddubs_epi16(weights.high, row.v);
    } else {
        low = _mm256_maddubs_epi16(weights.low_magnitude, _mm256_sign_epi8(row.v, weights.low));
        high = _mm256_maddubs_epi16(weights.high_magnitude, _mm256_sign_epi8(row.v, weights.high));
    }
    return {{widen_pairs(sum.low.v, low)}, {widen_pairs(sum.high.v, high)}};
}

#endif

/// The levels of one step of int8: 64 bytes.
SPECRUNTIME_INLINE WeightBytes<false> load_step(const uint8_t* from) {
    const __m256i* bytes = reinterpret_cast<const __m256i*>(from);
    return weight_bytes<false>(_mm256_loadu_si256(bytes), _mm256_loadu_si256(bytes + 1));
}

/// The levels of two steps of int4: 64 bytes, the first step in the low nibbles.
SPECRUNTIME_INLINE void load_two_steps(const uint8_t* from, WeightBytes<true>* first, WeightBytes<true>* second) {
    const __m256i* bytes = reinterpret_cast<const __m256i*>(from);
    const __m256i low = _mm256_loadu_si256(bytes), high = _mm256_loadu_si256(bytes + 1);
    const __m256i nibble = _mm256_set1_epi8(15);
    *first = weight_bytes<true>(_mm256_and_si256(low, nibble), _mm256_and_si256(high, nibble));
    *second = weight_bytes<true>(_mm256_and_si256(_mm256_srli_epi16(low, 4), nibble),
                                 _mm256_and_si256(_mm256_srli_epi16(high, 4), nibble));
}

}  // namespace SPECRUNTIME_ISA
}  // namespace specruntime
