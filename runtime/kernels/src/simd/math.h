// exp and tanh over lanes: the same operations in the same order on every instruction set, so the same bits.
#pragma once

namespace specruntime {
namespace SPECRUNTIME_ISA {

// exp(x) for x <= 0, error below 2 units in the last place; exp(0) is 1 exactly. What underflows ends at exp(-87).
template <class V>
inline typename V::Float exp_negative(typename V::Float x) {
    x = V::max(V::all(-87.0f), x);  // in this order a NaN stays one
    const auto n = V::round(V::mul(x, V::all(1.44269504f)));
    auto r = V::fnma(n, V::all(0.693359375f), x);
    r = V::fnma(n, V::all(-2.12194440e-4f), r);
    auto p = V::all(1.9875691500e-4f);
    p = V::fma(p, r, V::all(1.3981999507e-3f));
    p = V::fma(p, r, V::all(8.3334519073e-3f));
    p = V::fma(p, r, V::all(4.1665795894e-2f));
    p = V::fma(p, r, V::all(1.6666665459e-1f));
    p = V::fma(p, r, V::all(5.0000001201e-1f));
    p = V::fma(p, V::mul(r, r), V::add(r, V::all(1.0f)));
    return V::mul(p, V::power_of_two(V::to_int(n)));
}

// tanh(x): a polynomial near zero, where 1 - exp(-2x) would cancel.
template <class V>
inline typename V::Float tanh(typename V::Float x) {
    const auto size = V::abs(x);
    const auto e = exp_negative<V>(V::mul(size, V::all(-2.0f)));
    const auto quotient = V::div(V::sub(V::all(1.0f), e), V::add(V::all(1.0f), e));
    const auto z = V::mul(x, x);
    auto p = V::all(-5.70498872745e-3f);
    p = V::fma(p, z, V::all(2.06390887954e-2f));
    p = V::fma(p, z, V::all(-5.37397155531e-2f));
    p = V::fma(p, z, V::all(1.33314422036e-1f));
    p = V::fma(p, z, V::all(-3.33332819422e-1f));
    const auto polynomial = V::fma(V::mul(p, z), x, x);
    return V::where_less(size, V::all(0.625f), polynomial, V::with_sign(quotient, x));
}

}  // namespace SPECRUNTIME_ISA
}  // namespace specruntime
