// Sixteen 32-bit lanes in one AVX-512 register, for processors whose 512-bit units run at full rate. Works with Lanes8.
#pragma once
#include <cmath>
#include "lanes_avx2.h"

namespace specruntime {
namespace SPECRUNTIME_ISA {

struct Lanes16 {
    static constexpr int size = 16;
    using Float = __m512;
    using Int = __m512i;

    static Float zero() { return _mm512_setzero_ps(); }
    static Float all(float x) { return _mm512_set1_ps(x); }
    static Float load(const float* p) { return _mm512_loadu_ps(p); }
    static void store(float* p, Float x) { _mm512_storeu_ps(p, x); }
    static Float add(Float a, Float b) { return _mm512_add_ps(a, b); }
    static Float sub(Float a, Float b) { return _mm512_sub_ps(a, b); }
    static Float mul(Float a, Float b) { return _mm512_mul_ps(a, b); }
    static Float div(Float a, Float b) { return _mm512_div_ps(a, b); }
    static Float fma(Float a, Float b, Float c) { return _mm512_fmadd_ps(a, b, c); }
    static Float fnma(Float a, Float b, Float c) { return _mm512_fnmadd_ps(a, b, c); }
    static Float max(Float a, Float b) { return _mm512_max_ps(a, b); }
    static Float abs(Float x) { return _mm512_andnot_ps(_mm512_set1_ps(-0.0f), x); }
    static Float with_sign(Float magnitude, Float x) {
        return _mm512_or_ps(magnitude, _mm512_and_ps(_mm512_set1_ps(-0.0f), x));
    }
    static Float round(Float x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
    static Float where_less(Float lane, Float limit, Float a, Float b) {
        return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(lane, limit, _CMP_LT_OQ), b, a);
    }
    static Float zero_where_masked(Float lane, Float x) {
        const __mmask16 seen = _mm512_cmp_ps_mask(lane, _mm512_set1_ps(-INFINITY), _CMP_NEQ_UQ);
        return _mm512_maskz_mov_ps(seen, x);
    }
    static __m256 low(Float x) { return _mm512_castps512_ps256(x); }
    static __m256 high(Float x) { return _mm512_extractf32x8_ps(x, 1); }
    static float highest(Float x) { return Lanes8::highest(Lanes8::max(low(x), high(x))); }
    // In the order of Lanes8, so that a row's sum is the same on every path.
    static __m256 accumulate(__m256 sums, Float x) { return Lanes8::add(Lanes8::add(sums, low(x)), high(x)); }

    static Int int_zero() { return _mm512_setzero_si512(); }
    static Int int_load(const std::int32_t* p) { return _mm512_loadu_si512(p); }
    static void int_store(std::int32_t* p, Int x) { _mm512_storeu_si512(p, x); }
    static Int int_all(std::int32_t x) { return _mm512_set1_epi32(x); }
    static Float to_float(Int x) { return _mm512_cvtepi32_ps(x); }
    static Int to_int(Float x) { return _mm512_cvtps_epi32(x); }
    static Float power_of_two(Int x) {
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(x, int_all(127)), 23));
    }
    static Float bytes_to_float(const std::int8_t* p) {
        return to_float(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
    }
    static Int even_bytes(Int x) { return _mm512_srai_epi16(_mm512_slli_epi16(x, 8), 8); }
    static Int odd_bytes(Int x) { return _mm512_srai_epi16(x, 8); }
    static Int dot_pairs(Int sums, Int a, Int b) { return _mm512_dpwssd_epi32(sums, a, b); }
};

}  // namespace SPECRUNTIME_ISA
}  // namespace specruntime
