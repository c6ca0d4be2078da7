// Eight 32-bit lanes in one AVX2 register. Included by files in src/isa only, which name their namespace first.
#pragma once
#include <immintrin.h>

#include <cmath>
#include <cstdint>

namespace specruntime {
namespace SPECRUNTIME_ISA {

struct Lanes8 {
    static constexpr int size = 8;
    using Float = __m256;
    using Int = __m256i;

    static Float zero() { return _mm256_setzero_ps(); }
    static Float all(float x) { return _mm256_set1_ps(x); }
    static Float load(const float* p) { return _mm256_loadu_ps(p); }
    static void store(float* p, Float x) { _mm256_storeu_ps(p, x); }
    static Float add(Float a, Float b) { return _mm256_add_ps(a, b); }
    static Float sub(Float a, Float b) { return _mm256_sub_ps(a, b); }
    static Float mul(Float a, Float b) { return _mm256_mul_ps(a, b); }
    static Float div(Float a, Float b) { return _mm256_div_ps(a, b); }
    // a * b + c and c - a * b, rounded once
    static Float fma(Float a, Float b, Float c) { return _mm256_fmadd_ps(a, b, c); }
    static Float fnma(Float a, Float b, Float c) { return _mm256_fnmadd_ps(a, b, c); }
    // The larger one; b where either is not a number.
    static Float max(Float a, Float b) { return _mm256_max_ps(a, b); }
    static Float abs(Float x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }
    // `magnitude` (not negative) with the sign of x
    static Float with_sign(Float magnitude, Float x) {
        return _mm256_or_ps(magnitude, _mm256_and_ps(_mm256_set1_ps(-0.0f), x));
    }
    static Float round(Float x) {  // to nearest, ties to even
        return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    }
    // lane < limit ? a : b
    static Float where_less(Float lane, Float limit, Float a, Float b) {
        return _mm256_blendv_ps(b, a, _mm256_cmp_ps(lane, limit, _CMP_LT_OQ));
    }
    // 0 where `lane` is minus infinity, else x
    static Float zero_where_masked(Float lane, Float x) {
        return _mm256_andnot_ps(_mm256_cmp_ps(lane, _mm256_set1_ps(-INFINITY), _CMP_EQ_OQ), x);
    }
    static float highest(Float x) {
        __m128 m = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
        m = _mm_max_ps(m, _mm_movehl_ps(m, m));
        return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
    }
    // ((0+4)+(2+6)) + ((1+5)+(3+7)): one order on every instruction set
    static float sum(Float x) {
        __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
        s = _mm_add_ps(s, _mm_movehl_ps(s, s));
        return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
    }
    static float first(Float x) { return _mm256_cvtss_f32(x); }
    // Add to eight running sums, key k to sum k % 8.
    static Float accumulate(Float sums, Float x) { return _mm256_add_ps(sums, x); }

    static Int int_zero() { return _mm256_setzero_si256(); }
    static Int int_load(const std::int32_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
    static void int_store(std::int32_t* p, Int x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x); }
    static Int int_all(std::int32_t x) { return _mm256_set1_epi32(x); }
    static Float to_float(Int x) { return _mm256_cvtepi32_ps(x); }
    static Int to_int(Float x) { return _mm256_cvtps_epi32(x); }  // to nearest, ties to even
    static Int clamp(Int x, std::int32_t limit) {
        return _mm256_max_epi32(_mm256_min_epi32(x, int_all(limit)), int_all(-limit));
    }
    // 2 to the power of x, an integer in -126..127
    static Float power_of_two(Int x) {
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(x, int_all(127)), 23));
    }
    // Eight levels of one byte each, as floats.
    static Float bytes_to_float(const std::int8_t* p) {
        return to_float(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
    }
    // Bytes 0 and 2, or 1 and 3, of every lane as a pair of 16-bit numbers.
    static Int even_bytes(Int x) { return _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8); }
    static Int odd_bytes(Int x) { return _mm256_srai_epi16(x, 8); }
    // sums + a.lo * b.lo + a.hi * b.hi for the 16-bit pair in every lane
    static Int dot_pairs(Int sums, Int a, Int b) {
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
        return _mm256_dpwssd_epi32(sums, a, b);
#elif defined(__AVXVNNI__)
        return _mm256_dpwssd_avx_epi32(sums, a, b);
#else
        return _mm256_add_epi32(sums, _mm256_madd_epi16(a, b));
#endif
    }
};

// Ask for the cache line of `address`, which may lie anywhere: soon, or a little later.
inline void prefetch_near(const void* address) { _mm_prefetch(static_cast<const char*>(address), _MM_HINT_T0); }
inline void prefetch_far(const void* address) { _mm_prefetch(static_cast<const char*>(address), _MM_HINT_T1); }

// Eight rows of eight 32-bit numbers, from byte `offset` of each row: number u of row r to out[u * stride + r].
inline void transpose8(const std::uint8_t* const* rows, std::size_t offset, float* out, std::size_t stride) {
    // Rows r and r + 4 share a register from the load on, which saves the shuffles across its halves.
    const auto both = [&](int row, std::size_t half) {
        const __m128 low = _mm_loadu_ps(reinterpret_cast<const float*>(rows[row] + offset + half));
        const __m128 high = _mm_loadu_ps(reinterpret_cast<const float*>(rows[row + 4] + offset + half));
        return _mm256_insertf128_ps(_mm256_castps128_ps256(low), high, 1);
    };
    for (std::size_t half = 0; half < 2; ++half) {
        const __m256 a = both(0, 16 * half), b = both(1, 16 * half), c = both(2, 16 * half), d = both(3, 16 * half);
        const __m256 ab_low = _mm256_unpacklo_ps(a, b), ab_high = _mm256_unpackhi_ps(a, b);
        const __m256 cd_low = _mm256_unpacklo_ps(c, d), cd_high = _mm256_unpackhi_ps(c, d);
        float* to = out + 4 * half * stride;
        _mm256_storeu_ps(to, _mm256_shuffle_ps(ab_low, cd_low, 0x44));
        _mm256_storeu_ps(to + stride, _mm256_shuffle_ps(ab_low, cd_low, 0xee));
        _mm256_storeu_ps(to + 2 * stride, _mm256_shuffle_ps(ab_high, cd_high, 0x44));
        _mm256_storeu_ps(to + 3 * stride, _mm256_shuffle_ps(ab_high, cd_high, 0xee));
    }
}

}  // namespace SPECRUNTIME_ISA
}  // namespace specruntime
