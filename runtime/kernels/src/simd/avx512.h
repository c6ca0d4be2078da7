// Sixteen lanes in one zmm register: the width of a tile of outputs. For processors whose 512-bit units run at full
// rate.
#pragma once

#include "avx.h"

namespace specruntime {
namespace SPECRUNTIME_ISA {

struct F16 {
    __m512 v;
};
struct I16 {
    __m512i v;
};

SPECRUNTIME_INLINE F8 low_half(F16 a) { return {_mm512_castps512_ps256(a.v)}; }
SPECRUNTIME_INLINE F8 high_half(F16 a) { return {_mm512_extractf32x8_ps(a.v, 1)}; }

SPECRUNTIME_INLINE F16 zero16() { return {_mm512_setzero_ps()}; }
SPECRUNTIME_INLINE F16 set16(float value) { return {_mm512_set1_ps(value)}; }
SPECRUNTIME_INLINE F16 load16(const float* from) { return {_mm512_loadu_ps(from)}; }
SPECRUNTIME_INLINE F16 load_half16(const uint16_t* from) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)))};
}
SPECRUNTIME_INLINE F16 load_bfloat16(const uint16_t* from) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
SPECRUNTIME_INLINE void store(float* to, F16 a) { _mm512_storeu_ps(to, a.v); }
SPECRUNTIME_INLINE F16 operator+(F16 a, F16 b) { return {_mm512_add_ps(a.v, b.v)}; }
SPECRUNTIME_INLINE F16 operator*(F16 a, F16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
SPECRUNTIME_INLINE F16 fma(F16 a, F16 b, F16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }

SPECRUNTIME_INLINE I16 zero_int16() { return {_mm512_setzero_si512()}; }
SPECRUNTIME_INLINE I16 set_int16(int32_t value) { return {_mm512_set1_epi32(value)}; }
SPECRUNTIME_INLINE I16 operator+(I16 a, I16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
SPECRUNTIME_INLINE I16 operator-(I16 a, I16 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
SPECRUNTIME_INLINE I16 operator*(I16 a, I16 b) { return {_mm512_mullo_epi32(a.v, b.v)}; }
SPECRUNTIME_INLINE I16 operator&(I16 a, I16 b) { return {_mm512_and_si512(a.v, b.v)}; }
SPECRUNTIME_INLINE I16 max(I16 a, I16 b) { return {_mm512_max_epi32(a.v, b.v)}; }
template <int Bits>
SPECRUNTIME_INLINE I16 shift_left(I16 a) {
    return {_mm512_slli_epi32(a.v, Bits)};
}
template <int Bits>
SPECRUNTIME_INLINE I16 shift_right(I16 a) {
    return {_mm512_srai_epi32(a.v, Bits)};
}
SPECRUNTIME_INLINE F16 to_float(I16 a) { return {_mm512_cvtepi32_ps(a.v)}; }
SPECRUNTIME_INLINE I16 to_int(F16 a) { return {_mm512_cvtps_epi32(a.v)}; }  // nearest, ties to even
SPECRUNTIME_INLINE I16 bits(F16 a) { return {_mm512_castps_si512(a.v)}; }
SPECRUNTIME_INLINE I16 load_bytes16(const uint8_t* from) {
    return {_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)))};
}
SPECRUNTIME_INLINE I8 low_half(I16 a) { return {_mm512_castsi512_si256(a.v)}; }
SPECRUNTIME_INLINE I8 high_half(I16 a) { return {_mm512_extracti32x8_epi32(a.v, 1)}; }
SPECRUNTIME_INLINE int32_t reduce_add(I16 a) { return reduce_add(low_half(a) + high_half(a)); }
SPECRUNTIME_INLINE int32_t reduce_max(I16 a) { return reduce_max(max(low_half(a), high_half(a))); }
SPECRUNTIME_INLINE void store_bytes(int8_t* to, I16 a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(a.v));
}

// Products of weight bytes and row bytes: see avx_bytes.h.
template <bool Int4>
constexpr int kOffset = 0;

struct RowBytes {
    __m512i v;
};
SPECRUNTIME_INLINE RowBytes row_bytes(const int8_t* from) { return {_mm512_set1_epi32(read<int32_t>(from))}; }

template <bool Int4>
struct WeightBytes {
    __m512i v;
};
template <bool Int4>
SPECRUNTIME_INLINE I16 dot(I16 sum, const WeightBytes<Int4>& weights, RowBytes row) {
    return {_mm512_dpbusd_epi32(sum.v, weights.v, row.v)};
}
SPECRUNTIME_INLINE WeightBytes<false> load_step(const uint8_t* from) { return {_mm512_loadu_si512(from)}; }
SPECRUNTIME_INLINE void load_two_steps(const uint8_t* from, WeightBytes<true>* first, WeightBytes<true>* second) {
    const __m512i both = _mm512_loadu_si512(from), nibble = _mm512_set1_epi8(15);
    *first = {_mm512_and_si512(both, nibble)};
    *second = {_mm512_and_si512(_mm512_srli_epi16(both, 4), nibble)};
}

}  // namespace SPECRUNTIME_ISA
}  // namespace specruntime
