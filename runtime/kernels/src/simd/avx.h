// Vectors of eight floats and eight 32-bit integers in one ymm register, for the paths avx2, avxvnni and avx512vnni.
// The path avx512 takes them too where a tile of 16 is not what is at hand (activations, head dims of attention).
//
// Products of bytes differ by path: with SPECRUNTIME_VNNI (and AVX512VL or AVX-VNNI) one instruction, without it three.
#pragma once

#include <immintrin.h>

#include "common.h"

namespace specruntime {
namespace SPECRUNTIME_ISA {

struct F8 {
    __m256 v;
};
struct I8 {
    __m256i v;
};

SPECRUNTIME_INLINE F8 zero8() { return {_mm256_setzero_ps()}; }
SPECRUNTIME_INLINE F8 set8(float value) { return {_mm256_set1_ps(value)}; }
SPECRUNTIME_INLINE F8 load8(const float* from) { return {_mm256_loadu_ps(from)}; }
SPECRUNTIME_INLINE void store(float* to, F8 a) { _mm256_storeu_ps(to, a.v); }
SPECRUNTIME_INLINE F8 operator+(F8 a, F8 b) { return {_mm256_add_ps(a.v, b.v)}; }
SPECRUNTIME_INLINE F8 operator-(F8 a, F8 b) { return {_mm256_sub_ps(a.v, b.v)}; }
SPECRUNTIME_INLINE F8 operator*(F8 a, F8 b) { return {_mm256_mul_ps(a.v, b.v)}; }
SPECRUNTIME_INLINE F8 operator/(F8 a, F8 b) { return {_mm256_div_ps(a.v, b.v)}; }
SPECRUNTIME_INLINE F8 fma(F8 a, F8 b, F8 c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }    // a*b + c, rounded once
SPECRUNTIME_INLINE F8 fnma(F8 a, F8 b, F8 c) { return {_mm256_fnmadd_ps(a.v, b.v, c.v)}; }  // c - a*b
/// b where a is not smaller (or either is NaN).
SPECRUNTIME_INLINE F8 min(F8 a, F8 b) { return {_mm256_min_ps(a.v, b.v)}; }
SPECRUNTIME_INLINE F8 max(F8 a, F8 b) { return {_mm256_max_ps(a.v, b.v)}; }
SPECRUNTIME_INLINE F8 abs(F8 a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)}; }
/// The magnitude of `a` with the sign of `sign`.
SPECRUNTIME_INLINE F8 copysign(F8 a, F8 sign) {
    const __m256 mask = _mm256_set1_ps(-0.0f);
    return {_mm256_or_ps(_mm256_andnot_ps(mask, a.v), _mm256_and_ps(mask, sign.v))};
}
/// To the nearest whole number, ties to even.
SPECRUNTIME_INLINE F8 round(F8 a) { return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
/// The lanes of `yes` where a < b, of `no` elsewhere.
SPECRUNTIME_INLINE F8 select_less(F8 a, F8 b, F8 yes, F8 no) {
    return {_mm256_blendv_ps(no.v, yes.v, _mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ))};
}
/// 2 to the power of `a`, whole numbers from -126 to 127.
SPECRUNTIME_INLINE F8 power_of_two(F8 a) {
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(a.v), _mm256_set1_epi32(127));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23))};
}
SPECRUNTIME_INLINE float reduce_max(F8 a) {
    __m128 half = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
    half = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
}

SPECRUNTIME_INLINE F8 load_half8(const uint16_t* from) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)))};
}
SPECRUNTIME_INLINE F8 load_bfloat8(const uint16_t* from) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(wide, 16))};
}
/// Eight signed bytes as floats.
SPECRUNTIME_INLINE F8 load_int8x8(const int8_t* from) {
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))))};
}

SPECRUNTIME_INLINE I8 zero_int8() { return {_mm256_setzero_si256()}; }
SPECRUNTIME_INLINE I8 set_int8(int32_t value) { return {_mm256_set1_epi32(value)}; }
SPECRUNTIME_INLINE I8 operator+(I8 a, I8 b) { return {_mm256_add_epi32(a.v, b.v)}; }
SPECRUNTIME_INLINE I8 operator-(I8 a, I8 b) { return {_mm256_sub_epi32(a.v, b.v)}; }
SPECRUNTIME_INLINE I8 operator*(I8 a, I8 b) { return {_mm256_mullo_epi32(a.v, b.v)}; }
SPECRUNTIME_INLINE I8 operator&(I8 a, I8 b) { return {_mm256_and_si256(a.v, b.v)}; }
SPECRUNTIME_INLINE I8 max(I8 a, I8 b) { return {_mm256_max_epi32(a.v, b.v)}; }
template <int Bits>
SPECRUNTIME_INLINE I8 shift_left(I8 a) {
    return {_mm256_slli_epi32(a.v, Bits)};
}
template <int Bits>
SPECRUNTIME_INLINE I8 shift_right(I8 a) {  // the sign is kept
    return {_mm256_srai_epi32(a.v, Bits)};
}
SPECRUNTIME_INLINE F8 to_float(I8 a) { return {_mm256_cvtepi32_ps(a.v)}; }
SPECRUNTIME_INLINE I8 to_int(F8 a) { return {_mm256_cvtps_epi32(a.v)}; }  // nearest, ties to even
SPECRUNTIME_INLINE I8 bits(F8 a) { return {_mm256_castps_si256(a.v)}; }
SPECRUNTIME_INLINE I8 load_bytes8(const uint8_t* from) {
    return {_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)))};
}
SPECRUNTIME_INLINE int32_t reduce_add(I8 a) {
    __m128i half = _mm_add_epi32(_mm256_castsi256_si128(a.v), _mm256_extracti128_si256(a.v, 1));
    half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(half, _mm_shuffle_epi32(half, 0xb1)));
}
SPECRUNTIME_INLINE int32_t reduce_max(I8 a) {
    __m128i half = _mm_max_epi32(_mm256_castsi256_si128(a.v), _mm256_extracti128_si256(a.v, 1));
    half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(half, _mm_shuffle_epi32(half, 0xb1)));
}
/// Sixteen integers, which must fit, as signed bytes.
SPECRUNTIME_INLINE void store_bytes(int8_t* to, I8 low, I8 high) {
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(low.v, high.v), 0xd8);
    const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bytes);
}

SPECRUNTIME_INLINE void prefetch(const void* address) { _mm_prefetch(static_cast<const char*>(address), _MM_HINT_T0); }

}  // namespace SPECRUNTIME_ISA
}  // namespace specruntime
