// Activations of eight floats, with the same bits on every instruction set: each step is one correctly rounded
// operation.
#pragma once

#include "../simd/common.h"

namespace specruntime {
namespace SPECRUNTIME_ISA {

/// exp(x), within 2 units in the last place for x in [-87, 88]; outside the value at the nearer end.
SPECRUNTIME_INLINE F8 exp(F8 x) {
    x = min(max(x, set8(-87.0f)), set8(88.0f));
    const F8 whole = round(x * set8(1.44269504f));
    F8 rest = fnma(whole, set8(0.693359375f), x);  // ln 2 in two parts: the first product is exact
    rest = fnma(whole, set8(-2.12194440e-4f), rest);
    F8 sum = fma(set8(1.9875691500e-4f), rest, set8(1.3981999507e-3f));
    sum = fma(sum, rest, set8(8.3334519073e-3f));
    sum = fma(sum, rest, set8(4.1665795894e-2f));
    sum = fma(sum, rest, set8(1.6666665459e-1f));
    sum = fma(sum, rest, set8(5.0000001201e-1f));
    sum = fma(sum, rest * rest, rest + set8(1.0f));
    return sum * power_of_two(whole);
}

/// erf(x), within 1.5 units in the last place (two minimax polynomials, the outer one of log(1 - erf)).
SPECRUNTIME_INLINE F8 erf(F8 x) {
    const F8 size = abs(x), square = x * x;
    F8 inner = fma(set8(-5.96761703e-4f), square, set8(4.99119423e-3f));
    inner = fma(inner, square, set8(-2.67681349e-2f));
    inner = fma(inner, square, set8(1.12819925e-1f));
    inner = fma(inner, square, set8(-3.76125336e-1f));
    inner = fma(inner, square, set8(1.28379166e-1f));
    inner = fma(inner, x, x);

    const F8 capped = min(size, set8(4.0f)), capped_square = capped * capped;  // erf(4) is 1 in fp32
    F8 outer = fma(set8(-1.72853470e-5f), capped, set8(3.83197126e-4f));
    const F8 odd = fma(set8(-3.88396438e-3f), capped, set8(2.42546219e-2f));
    outer = fma(outer, capped_square, odd);
    outer = fma(outer, capped, set8(-1.06777877e-1f));
    outer = fma(outer, capped, set8(-6.34846687e-1f));
    outer = fma(outer, capped, set8(-1.28717512e-1f));
    outer = fma(outer, capped, zero8() - capped);
    outer = copysign(set8(1.0f) - exp(outer), x);
    return select_less(size, set8(0.927734375f), inner, outer);
}

SPECRUNTIME_INLINE F8 silu(F8 x) { return x / (set8(1.0f) + exp(zero8() - x)); }

SPECRUNTIME_INLINE F8 gelu(F8 x) { return set8(0.5f) * x * (set8(1.0f) + erf(x * set8(0.707106781f))); }

/// 0.5 x (1 + tanh(u)), which is x / (1 + exp(-2u)), u = sqrt(2 / pi) (x + 0.044715 x^3).
SPECRUNTIME_INLINE F8 gelu_tanh(F8 x) {
    const F8 twice = x * fma(set8(0.0713548128f), x * x, set8(1.59576912f));
    return x / (set8(1.0f) + exp(zero8() - twice));
}

}  // namespace SPECRUNTIME_ISA
}  // namespace specruntime
