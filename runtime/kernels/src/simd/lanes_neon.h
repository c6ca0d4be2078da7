// Eight 32-bit lanes in two NEON registers. Included by files in src/isa only, which name their namespace first.
#pragma once
#include <arm_neon.h>

#include <cstddef>
#include <cmath>
#include <cstdint>

namespace specruntime {
namespace SPECRUNTIME_ISA {

struct Lanes8 {
    static constexpr int size = 8;
    struct Float {
        float32x4_t low, high;
    };
    struct Int {
        int32x4_t low, high;
    };

    static Float zero() { return all(0); }
    static Float all(float x) { return {vdupq_n_f32(x), vdupq_n_f32(x)}; }
    static Float load(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4)}; }
    static void store(float* p, Float x) {
        vst1q_f32(p, x.low);
        vst1q_f32(p + 4, x.high);
    }
    static Float add(Float a, Float b) { return {vaddq_f32(a.low, b.low), vaddq_f32(a.high, b.high)}; }
    static Float sub(Float a, Float b) { return {vsubq_f32(a.low, b.low), vsubq_f32(a.high, b.high)}; }
    static Float mul(Float a, Float b) { return {vmulq_f32(a.low, b.low), vmulq_f32(a.high, b.high)}; }
    static Float div(Float a, Float b) { return {vdivq_f32(a.low, b.low), vdivq_f32(a.high, b.high)}; }
    // a * b + c and c - a * b, rounded once
    static Float fma(Float a, Float b, Float c) {
        return {vfmaq_f32(c.low, a.low, b.low), vfmaq_f32(c.high, a.high, b.high)};
    }
    static Float fnma(Float a, Float b, Float c) {
        return {vfmsq_f32(c.low, a.low, b.low), vfmsq_f32(c.high, a.high, b.high)};
    }
    static Float max(Float a, Float b) { return {vmaxq_f32(a.low, b.low), vmaxq_f32(a.high, b.high)}; }
    static Float abs(Float x) { return {vabsq_f32(x.low), vabsq_f32(x.high)}; }
    static Float with_sign(Float magnitude, Float x) {
        const uint32x4_t sign = vdupq_n_u32(0x80000000u);
        return {vbslq_f32(sign, x.low, magnitude.low), vbslq_f32(sign, x.high, magnitude.high)};
    }
    static Float round(Float x) { return {vrndnq_f32(x.low), vrndnq_f32(x.high)}; }  // ties to even
    // lane < limit ? a : b
    static Float where_less(Float lane, Float limit, Float a, Float b) {
        return {vbslq_f32(vcltq_f32(lane.low, limit.low), a.low, b.low),
                vbslq_f32(vcltq_f32(lane.high, limit.high), a.high, b.high)};
    }
    // 0 where `lane` is minus infinity, else x
    static Float zero_where_masked(Float lane, Float x) {
        const float32x4_t masked = vdupq_n_f32(-INFINITY), nothing = vdupq_n_f32(0);
        return {vbslq_f32(vceqq_f32(lane.low, masked), nothing, x.low),
                vbslq_f32(vceqq_f32(lane.high, masked), nothing, x.high)};
    }
    static float highest(Float x) { return vmaxvq_f32(vmaxq_f32(x.low, x.high)); }
    // ((0+4)+(2+6)) + ((1+5)+(3+7)): one order on every instruction set
    static float sum(Float x) {
        const float32x4_t four = vaddq_f32(x.low, x.high);
        const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
        return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
    }
    static float first(Float x) { return vgetq_lane_f32(x.low, 0); }
    // Add to eight running sums, key k to sum k % 8.
    static Float accumulate(Float sums, Float x) { return add(sums, x); }

    static Int int_zero() { return int_all(0); }
    static Int int_load(const std::int32_t* p) { return {vld1q_s32(p), vld1q_s32(p + 4)}; }
    static void int_store(std::int32_t* p, Int x) {
        vst1q_s32(p, x.low);
        vst1q_s32(p + 4, x.high);
    }
    static Int int_all(std::int32_t x) { return {vdupq_n_s32(x), vdupq_n_s32(x)}; }
    static Float to_float(Int x) { return {vcvtq_f32_s32(x.low), vcvtq_f32_s32(x.high)}; }
    static Int to_int(Float x) { return {vcvtnq_s32_f32(x.low), vcvtnq_s32_f32(x.high)}; }  // ties to even
    static Int clamp(Int x, std::int32_t limit) {
        const int32x4_t top = vdupq_n_s32(limit), bottom = vdupq_n_s32(-limit);
        return {vmaxq_s32(vminq_s32(x.low, top), bottom), vmaxq_s32(vminq_s32(x.high, top), bottom)};
    }
    // 2 to the power of x, an integer in -126..127
    static Float power_of_two(Int x) {
        const int32x4_t bias = vdupq_n_s32(127);
        return {vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(x.low, bias), 23)),
                vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(x.high, bias), 23))};
    }
    // Eight levels of one byte each, as floats.
    static Float bytes_to_float(const std::int8_t* p) {
        const int16x8_t wide = vmovl_s8(vld1_s8(p));
        return to_float({vmovl_s16(vget_low_s16(wide)), vmovl_high_s16(wide)});
    }
    // Bytes 0 and 2, or 1 and 3, of every lane as a pair of 16-bit numbers.
    static Int even_bytes(Int x) { return {even(x.low), even(x.high)}; }
    static Int odd_bytes(Int x) { return {odd(x.low), odd(x.high)}; }
    // sums + a.lo * b.lo + a.hi * b.hi for the 16-bit pair in every lane
    static Int dot_pairs(Int sums, Int a, Int b) {
        return {dot(sums.low, a.low, b.low), dot(sums.high, a.high, b.high)};
    }

private:
    static int32x4_t even(int32x4_t x) {
        return vreinterpretq_s32_s16(vshrq_n_s16(vshlq_n_s16(vreinterpretq_s16_s32(x), 8), 8));
    }
    static int32x4_t odd(int32x4_t x) { return vreinterpretq_s32_s16(vshrq_n_s16(vreinterpretq_s16_s32(x), 8)); }
    static int32x4_t dot(int32x4_t sums, int32x4_t a, int32x4_t b) {
        const int16x8_t x = vreinterpretq_s16_s32(a), y = vreinterpretq_s16_s32(b);
        const int32x4_t first = vmull_s16(vget_low_s16(x), vget_low_s16(y)), second = vmull_high_s16(x, y);
        return vaddq_s32(sums, vpaddq_s32(first, second));
    }
};

// Ask for the cache line of `address`, which may lie anywhere: soon, or a little later.
#if defined(_MSC_VER) && !defined(__clang__)
inline void prefetch_near(const void* address) { __prefetch(address); }
inline void prefetch_far(const void* address) { __prefetch(address); }
#else
inline void prefetch_near(const void* address) { __builtin_prefetch(address, 0, 3); }
inline void prefetch_far(const void* address) { __builtin_prefetch(address, 0, 2); }
#endif

// Eight rows of eight 32-bit numbers, from byte `offset` of each row: number u of row r to out[u * stride + r].
inline void transpose8(const std::uint8_t* const* rows, std::size_t offset, float* out, std::size_t stride) {
    for (int block = 0; block < 8; block += 4) {
        for (std::size_t half = 0; half < 2; ++half) {
            const auto row = [&](int r) {
                return vreinterpretq_f32_u8(vld1q_u8(rows[block + r] + offset + 16 * half));
            };
            const float32x4_t a = row(0), b = row(1), c = row(2), d = row(3);
            const float64x2_t ac_low = vreinterpretq_f64_f32(vtrn1q_f32(a, b));
            const float64x2_t ac_high = vreinterpretq_f64_f32(vtrn1q_f32(c, d));
            const float64x2_t bd_low = vreinterpretq_f64_f32(vtrn2q_f32(a, b));
            const float64x2_t bd_high = vreinterpretq_f64_f32(vtrn2q_f32(c, d));
            float* to = out + 4 * half * stride + block;
            vst1q_f32(to, vreinterpretq_f32_f64(vtrn1q_f64(ac_low, ac_high)));
            vst1q_f32(to + stride, vreinterpretq_f32_f64(vtrn1q_f64(bd_low, bd_high)));
            vst1q_f32(to + 2 * stride, vreinterpretq_f32_f64(vtrn2q_f64(ac_low, ac_high)));
            vst1q_f32(to + 3 * stride, vreinterpretq_f32_f64(vtrn2q_f64(bd_low, bd_high)));
        }
    }
}

}  // namespace SPECRUNTIME_ISA
}  // namespace specruntime
