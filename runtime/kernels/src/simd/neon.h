// Vectors of eight floats and eight 32-bit integers in two q registers, for the paths neon_dotprod and neon_i8mm.
#pragma once

#include <arm_neon.h>

#include "common.h"

namespace specruntime {
namespace SPECRUNTIME_ISA {

struct F8 {
    float32x4_t a, b;
};
struct I8 {
    int32x4_t a, b;
};

SPECRUNTIME_INLINE F8 set8(float value) { return {vdupq_n_f32(value), vdupq_n_f32(value)}; }
SPECRUNTIME_INLINE F8 zero8() { return set8(0.0f); }
SPECRUNTIME_INLINE F8 load8(const float* from) { return {vld1q_f32(from), vld1q_f32(from + 4)}; }
SPECRUNTIME_INLINE void store(float* to, F8 x) {
    vst1q_f32(to, x.a);
    vst1q_f32(to + 4, x.b);
}
SPECRUNTIME_INLINE F8 operator+(F8 x, F8 y) { return {vaddq_f32(x.a, y.a), vaddq_f32(x.b, y.b)}; }
SPECRUNTIME_INLINE F8 operator-(F8 x, F8 y) { return {vsubq_f32(x.a, y.a), vsubq_f32(x.b, y.b)}; }
SPECRUNTIME_INLINE F8 operator*(F8 x, F8 y) { return {vmulq_f32(x.a, y.a), vmulq_f32(x.b, y.b)}; }
SPECRUNTIME_INLINE F8 operator/(F8 x, F8 y) { return {vdivq_f32(x.a, y.a), vdivq_f32(x.b, y.b)}; }
SPECRUNTIME_INLINE F8 fma(F8 x, F8 y, F8 z) { return {vfmaq_f32(z.a, x.a, y.a), vfmaq_f32(z.b, x.b, y.b)}; }
SPECRUNTIME_INLINE F8 fnma(F8 x, F8 y, F8 z) { return {vfmsq_f32(z.a, x.a, y.a), vfmsq_f32(z.b, x.b, y.b)}; }
SPECRUNTIME_INLINE F8 min(F8 x, F8 y) { return {vminq_f32(x.a, y.a), vminq_f32(x.b, y.b)}; }
SPECRUNTIME_INLINE F8 max(F8 x, F8 y) { return {vmaxq_f32(x.a, y.a), vmaxq_f32(x.b, y.b)}; }
SPECRUNTIME_INLINE F8 abs(F8 x) { return {vabsq_f32(x.a), vabsq_f32(x.b)}; }
/// The magnitude of `x` with the sign of `sign`.
SPECRUNTIME_INLINE F8 copysign(F8 x, F8 sign) {
    const uint32x4_t mask = vdupq_n_u32(0x80000000u);
    return {vbslq_f32(mask, sign.a, x.a), vbslq_f32(mask, sign.b, x.b)};
}
/// To the nearest whole number, ties to even.
SPECRUNTIME_INLINE F8 round(F8 x) { return {vrndnq_f32(x.a), vrndnq_f32(x.b)}; }
/// The lanes of `yes` where x < y, of `no` elsewhere.
SPECRUNTIME_INLINE F8 select_less(F8 x, F8 y, F8 yes, F8 no) {
    return {vbslq_f32(vcltq_f32(x.a, y.a), yes.a, no.a), vbslq_f32(vcltq_f32(x.b, y.b), yes.b, no.b)};
}
SPECRUNTIME_INLINE float32x4_t power_of_two(float32x4_t x) {
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtnq_s32_f32(x), vdupq_n_s32(127)), 23));
}
/// 2 to the power of `x`, whole numbers from -126 to 127.
SPECRUNTIME_INLINE F8 power_of_two(F8 x) { return {power_of_two(x.a), power_of_two(x.b)}; }
SPECRUNTIME_INLINE F8 load_half8(const uint16_t* from) {
    const float16x8_t half = vreinterpretq_f16_u16(vld1q_u16(from));
    return {vcvt_f32_f16(vget_low_f16(half)), vcvt_high_f32_f16(half)};
}
SPECRUNTIME_INLINE F8 load_bfloat8(const uint16_t* from) {
    const uint16x8_t stored = vld1q_u16(from);
    return {vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(stored), 16)),
            vreinterpretq_f32_u32(vshll_high_n_u16(stored, 16))};
}

SPECRUNTIME_INLINE I8 set_int8(int32_t value) { return {vdupq_n_s32(value), vdupq_n_s32(value)}; }
SPECRUNTIME_INLINE I8 zero_int8() { return set_int8(0); }
SPECRUNTIME_INLINE I8 operator+(I8 x, I8 y) { return {vaddq_s32(x.a, y.a), vaddq_s32(x.b, y.b)}; }
SPECRUNTIME_INLINE I8 operator-(I8 x, I8 y) { return {vsubq_s32(x.a, y.a), vsubq_s32(x.b, y.b)}; }
SPECRUNTIME_INLINE I8 operator*(I8 x, I8 y) { return {vmulq_s32(x.a, y.a), vmulq_s32(x.b, y.b)}; }
SPECRUNTIME_INLINE I8 operator&(I8 x, I8 y) { return {vandq_s32(x.a, y.a), vandq_s32(x.b, y.b)}; }
SPECRUNTIME_INLINE I8 max(I8 x, I8 y) { return {vmaxq_s32(x.a, y.a), vmaxq_s32(x.b, y.b)}; }
template <int Bits>
SPECRUNTIME_INLINE I8 shift_left(I8 x) {
    return {vshlq_n_s32(x.a, Bits), vshlq_n_s32(x.b, Bits)};
}
template <int Bits>
SPECRUNTIME_INLINE I8 shift_right(I8 x) {  // the sign is kept
    return {vshrq_n_s32(x.a, Bits), vshrq_n_s32(x.b, Bits)};
}
SPECRUNTIME_INLINE F8 to_float(I8 x) { return {vcvtq_f32_s32(x.a), vcvtq_f32_s32(x.b)}; }
SPECRUNTIME_INLINE I8 to_int(F8 x) { return {vcvtnq_s32_f32(x.a), vcvtnq_s32_f32(x.b)}; }  // nearest, ties to even
SPECRUNTIME_INLINE I8 bits(F8 x) { return {vreinterpretq_s32_f32(x.a), vreinterpretq_s32_f32(x.b)}; }
SPECRUNTIME_INLINE I8 load_bytes8(const uint8_t* from) {
    const uint16x8_t words = vmovl_u8(vld1_u8(from));
    return {vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(words))),
            vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(words)))};
}
SPECRUNTIME_INLINE int32_t reduce_add(I8 x) { return vaddvq_s32(vaddq_s32(x.a, x.b)); }
SPECRUNTIME_INLINE int32_t reduce_max(I8 x) { return vmaxvq_s32(vmaxq_s32(x.a, x.b)); }
/// Sixteen integers, which must fit, as signed bytes.
SPECRUNTIME_INLINE void store_bytes(int8_t* to, I8 low, I8 high) {
    const int16x8_t first = vcombine_s16(vqmovn_s32(low.a), vqmovn_s32(low.b));
    const int16x8_t second = vcombine_s16(vqmovn_s32(high.a), vqmovn_s32(high.b));
    vst1q_s8(to, vcombine_s8(vqmovn_s16(first), vqmovn_s16(second)));
}

SPECRUNTIME_INLINE void prefetch(const void* address) {
#if defined(_MSC_VER)
    __prefetch(address);
#else
    __builtin_prefetch(address);
#endif
}

}  // namespace SPECRUNTIME_ISA
}  // namespace specruntime
