// Sixteen lanes as two vectors of eight: the width of a tile of outputs on the paths whose registers hold fewer.
#pragma once

#include "common.h"

namespace specruntime {
namespace SPECRUNTIME_ISA {

struct F16 {
    F8 low, high;
};
struct I16 {
    I8 low, high;
};

SPECRUNTIME_INLINE F8 low_half(F16 a) { return a.low; }
SPECRUNTIME_INLINE F8 high_half(F16 a) { return a.high; }

SPECRUNTIME_INLINE F16 zero16() { return {zero8(), zero8()}; }
SPECRUNTIME_INLINE F16 set16(float value) {
    const F8 all = set8(value);
    return {all, all};
}
SPECRUNTIME_INLINE F16 load16(const float* from) { return {load8(from), load8(from + 8)}; }
SPECRUNTIME_INLINE F16 load_half16(const uint16_t* from) { return {load_half8(from), load_half8(from + 8)}; }
SPECRUNTIME_INLINE F16 load_bfloat16(const uint16_t* from) { return {load_bfloat8(from), load_bfloat8(from + 8)}; }
SPECRUNTIME_INLINE void store(float* to, F16 a) {
    store(to, a.low);
    store(to + 8, a.high);
}
SPECRUNTIME_INLINE F16 operator+(F16 a, F16 b) { return {a.low + b.low, a.high + b.high}; }
SPECRUNTIME_INLINE F16 operator*(F16 a, F16 b) { return {a.low * b.low, a.high * b.high}; }
SPECRUNTIME_INLINE F16 fma(F16 a, F16 b, F16 c) { return {fma(a.low, b.low, c.low), fma(a.high, b.high, c.high)}; }

SPECRUNTIME_INLINE I16 zero_int16() { return {zero_int8(), zero_int8()}; }
SPECRUNTIME_INLINE I16 set_int16(int32_t value) {
    const I8 all = set_int8(value);
    return {all, all};
}
SPECRUNTIME_INLINE I16 operator+(I16 a, I16 b) { return {a.low + b.low, a.high + b.high}; }
SPECRUNTIME_INLINE I16 operator-(I16 a, I16 b) { return {a.low - b.low, a.high - b.high}; }
SPECRUNTIME_INLINE I16 operator*(I16 a, I16 b) { return {a.low * b.low, a.high * b.high}; }
SPECRUNTIME_INLINE I16 operator&(I16 a, I16 b) { return {a.low & b.low, a.high & b.high}; }
SPECRUNTIME_INLINE I16 max(I16 a, I16 b) { return {max(a.low, b.low), max(a.high, b.high)}; }
template <int Bits>
SPECRUNTIME_INLINE I16 shift_left(I16 a) {
    return {shift_left<Bits>(a.low), shift_left<Bits>(a.high)};
}
template <int Bits>
SPECRUNTIME_INLINE I16 shift_right(I16 a) {
    return {shift_right<Bits>(a.low), shift_right<Bits>(a.high)};
}
SPECRUNTIME_INLINE F16 to_float(I16 a) { return {to_float(a.low), to_float(a.high)}; }
SPECRUNTIME_INLINE I16 to_int(F16 a) { return {to_int(a.low), to_int(a.high)}; }
SPECRUNTIME_INLINE I16 bits(F16 a) { return {bits(a.low), bits(a.high)}; }
SPECRUNTIME_INLINE I16 load_bytes16(const uint8_t* from) { return {load_bytes8(from), load_bytes8(from + 8)}; }
SPECRUNTIME_INLINE int32_t reduce_add(I16 a) { return reduce_add(a.low + a.high); }
SPECRUNTIME_INLINE int32_t reduce_max(I16 a) { return reduce_max(max(a.low, a.high)); }
SPECRUNTIME_INLINE void store_bytes(int8_t* to, I16 a) { store_bytes(to, a.low, a.high); }

}  // namespace SPECRUNTIME_ISA
}  // namespace specruntime
