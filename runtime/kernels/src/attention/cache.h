// The two kinds of cache rows: how keys become a tile of scores' right side, how values become floats, how rows are
// written.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels.h"

namespace specruntime {
namespace SPECRUNTIME_ISA {

inline float read_float(const std::uint8_t* bytes) {
    float x;
    std::memcpy(&x, bytes, sizeof x);
    return x;
}

// Levels of a row: level_limit * x / max|x|, to nearest. Returns the scale that undoes it.
template <class Level>
inline float quantise(const float* row, int size, int level_limit, Level* levels) {
    auto largest = Lanes8::zero();
    for (int d = 0; d < size; d += 8) largest = Lanes8::max(largest, Lanes8::abs(Lanes8::load(row + d)));
    const float most = Lanes8::highest(largest);
    // Numbers so small that the inverse would overflow count as zero.
    const bool nothing = most < 1e-30f;
    const auto inverse = Lanes8::all(nothing ? 0.0f : static_cast<float>(level_limit) / most);
    for (int d = 0; d < size; d += 8) {
        std::int32_t eight[8];
        const auto level = Lanes8::to_int(Lanes8::mul(Lanes8::load(row + d), inverse));
        Lanes8::int_store(eight, Lanes8::clamp(level, level_limit));
        for (int k = 0; k < 8; ++k) levels[d + k] = static_cast<Level>(eight[k]);
    }
    return nothing ? 0.0f : most / static_cast<float>(level_limit);
}

// Rows of floats. A score is a sum over head dims in order, one fma each.
template <class V>
struct Fp32Cache {
    static constexpr bool has_scales = false;
    using Number = float;  // of a prepared query and of a tile
    using Sums = typename V::Float;

    static int units(int size) { return size; }  // numbers of a query row
    static Sums zero() { return V::zero(); }
    static Sums tile_load(const Number* tile) { return V::load(tile); }
    static Sums query(const Number* unit) { return V::all(*unit); }
    static Sums multiply(Sums sums, Sums query, Sums keys) { return V::fma(query, keys, sums); }
    static typename V::Float score(Sums sums, const float*, float) { return sums; }

    // Eight rows of keys to tile[unit * stride + key].
    static void transpose(const std::uint8_t* const* rows, int size, Number* tile, std::size_t stride) {
        for (int d = 0; d < size; d += 8) transpose8(rows, d * sizeof(float), tile + d * stride, stride);
    }
    static void read_scale(const std::uint8_t*, int, float*) {}
    static typename V::Float value(const std::uint8_t* row, int d) {
        return V::load(reinterpret_cast<const float*>(row) + d);
    }

    static void write(const float* row, int size, std::uint8_t* to) { std::memcpy(to, row, size * sizeof(float)); }
    static float keep_query(const float* row, int size, std::uint8_t* to) {
        std::memcpy(to, row, size * sizeof(float));
        return 1.0f;
    }
};

// Rows of levels with a scale each. Queries are rounded to 16 bits, and a score is an exact sum of integers: a query's
// rounding is 256 times finer than that of the keys.
template <class V>
struct Int8Cache {
    static constexpr bool has_scales = true;
    using Number = std::int32_t;  // a pair of 16-bit levels
    using Sums = typename V::Int;
    static constexpr int query_levels = 32767;  // 512 dims of 127 * 32767 still fit into 32 bits

    static int units(int size) { return size / 2; }
    static Sums zero() { return V::int_zero(); }
    static Sums tile_load(const Number* tile) { return V::int_load(tile); }
    static Sums query(const Number* unit) { return V::int_all(*unit); }
    static Sums multiply(Sums sums, Sums query, Sums keys) { return V::dot_pairs(sums, query, keys); }
    static typename V::Float score(Sums sums, const float* key_scales, float query_scale) {
        return V::mul(V::mul(V::to_float(sums), V::load(key_scales)), V::all(query_scale));
    }

    // Four bytes of a key are turned as one number, then split into two pairs: bytes 0 and 2, bytes 1 and 3.
    static void transpose(const std::uint8_t* const* rows, int size, Number* tile, std::size_t stride) {
        if (size < 32) {
            std::uint8_t padded[8][32];
            const std::uint8_t* padded_rows[8];
            for (int r = 0; r < 8; ++r) {
                std::memset(padded[r], 0, sizeof padded[r]);
                std::memcpy(padded[r], rows[r], static_cast<std::size_t>(size));
                padded_rows[r] = padded[r];
            }
            split(padded_rows, 0, size / 4, tile, stride);
            return;
        }
        for (int d = 0; d < size; d += 32) {
            const int from = d + 32 <= size ? d : size - 32;  // the last 32 again rather than bytes of another row
            split(rows, from, 8, tile + from / 2 * stride, stride);
        }
    }
    static void read_scale(const std::uint8_t* row, int size, float* scale) { *scale = read_float(row + size); }
    static typename V::Float value(const std::uint8_t* row, int d) {
        return V::bytes_to_float(reinterpret_cast<const std::int8_t*>(row) + d);
    }

    static void write(const float* row, int size, std::uint8_t* to) {
        const float scale = quantise(row, size, 127, reinterpret_cast<std::int8_t*>(to));
        std::memcpy(to + size, &scale, sizeof scale);
    }
    static float keep_query(const float* row, int size, std::uint8_t* to) {
        std::int16_t levels[512];
        const float scale = quantise(row, size, query_levels, levels);
        for (int d = 0; d < size; d += 4) {  // in the order of the split keys
            const std::int16_t four[4] = {levels[d], levels[d + 2], levels[d + 1], levels[d + 3]};
            std::memcpy(to + d * sizeof(std::int16_t), four, sizeof four);
        }
        return scale;
    }

private:
    static void split(const std::uint8_t* const* rows, int from, int groups, Number* tile, std::size_t stride) {
        alignas(32) float turned[8 * 8];
        transpose8(rows, static_cast<std::size_t>(from), turned, 8);
        for (int g = 0; g < groups; ++g) {
            std::int32_t eight[8];
            std::memcpy(eight, turned + 8 * g, sizeof eight);
            const auto four_bytes = Lanes8::int_load(eight);
            Lanes8::int_store(tile + 2 * g * stride, Lanes8::even_bytes(four_bytes));
            Lanes8::int_store(tile + (2 * g + 1) * stride, Lanes8::odd_bytes(four_bytes));
        }
    }
};

}  // namespace SPECRUNTIME_ISA
}  // namespace specruntime
