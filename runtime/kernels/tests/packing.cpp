#include "packing.h"

#include <cmath>
#include <cstring>

namespace tests {

using specruntime::Activation;
using specruntime::Format;
using specruntime::PackedMatrix;
using specruntime::Rounding;
using specruntime::ScaleType;

uint16_t half_of(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    const uint32_t sign = bits >> 16 & 0x8000;
    const float size = std::fabs(value);
    if (size >= 65520.0f) return static_cast<uint16_t>(sign | 0x7c00);
    if (size < 6.103515625e-5f)
        return static_cast<uint16_t>(sign | static_cast<uint32_t>(std::nearbyint(size * 16777216.0f)));
    int exponent;
    const float fraction = std::frexp(size, &exponent);  // size = fraction * 2^exponent, fraction in [0.5, 1)
    const auto mantissa = static_cast<uint32_t>(std::nearbyint(fraction * 2048.0f));
    return static_cast<uint16_t>(sign | ((static_cast<uint32_t>(exponent + 13) << 10) + mantissa));
}

float float_of_half(uint16_t half) {
    const int exponent = half >> 10 & 31, mantissa = half & 1023;
    const float size = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -24)
                                     : std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
    return half & 0x8000 ? -size : size;
}

uint16_t bfloat_of(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float float_of_bfloat(uint16_t stored) {
    const uint32_t bits = static_cast<uint32_t>(stored) << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

namespace {

float uniform(Random& random, float low, float high) {
    return std::uniform_real_distribution<float>(low, high)(random);
}

float as_stored(ScaleType type, float value) { return type == ScaleType::fp16 ? float_of_half(half_of(value)) : value; }

void put_scale(ScaleType type, uint8_t* to, int64_t index, float value) {
    if (type == ScaleType::fp32) {
        std::memcpy(to + index * 4, &value, 4);
        return;
    }
    const uint16_t half = half_of(value);
    std::memcpy(to + index * 2, &half, 2);
}

/// The output that lies in a lane of a tile; -1 for padding.
int64_t output_of(const PackedMatrix& matrix, int64_t tile, int64_t lane) {
    if (matrix.activation == Activation::none) {
        const int64_t output = tile * 16 + lane;
        return output < matrix.outputs ? output : -1;
    }
    const int64_t half = matrix.outputs / 2, pair = tile * 8 + lane % 8;
    return pair < half ? pair + (lane < 8 ? 0 : half) : -1;
}

void draw_integers(Sample& sample, Kind kind, Random& random) {
    const PackedMatrix& matrix = sample.matrix;
    const int top = matrix.format == Format::int4 ? 15 : 255;
    sample.blocks = matrix.rounding == Rounding::rows ? 1 : (matrix.inputs + matrix.block - 1) / matrix.block;
    const auto scales = static_cast<size_t>(matrix.outputs * sample.blocks);
    sample.levels.resize(static_cast<size_t>(matrix.outputs * matrix.inputs));
    for (uint8_t& level : sample.levels) {
        level = static_cast<uint8_t>(kind == Kind::usual ? between(random, 0, top) : between(random, 0, 1) * top);
    }
    sample.scales.resize(scales), sample.minima.resize(scales), sample.zeros.resize(scales);
    for (size_t i = 0; i < scales; ++i) {
        sample.scales[i] = as_stored(matrix.scale_type, uniform(random, 0.0005f, 0.02f));
        sample.minima[i] = as_stored(matrix.scale_type, uniform(random, -0.3f, 0.1f));
        sample.zeros[i] = static_cast<uint8_t>(matrix.has_zeros ? between(random, 0, top) : top == 15 ? 8 : 128);
    }
}

void pack_integers(Sample& sample) {
    const PackedMatrix& matrix = sample.matrix;
    const bool int4 = matrix.format == Format::int4;
    const int64_t padded = (matrix.inputs + matrix.block - 1) / matrix.block * matrix.block;
    const int64_t block = matrix.rounding == Rounding::rows ? padded : matrix.block;
    const int64_t scale_bytes = matrix.scale_type == ScaleType::fp16 ? 32 : 64;
    uint8_t* record = sample.bytes->get();
    for (int64_t tile = 0; tile < (matrix.outputs + 15) / 16; ++tile) {
        for (int64_t b = 0; b < sample.blocks; ++b) {
            uint8_t* scales = record + block * (int4 ? 8 : 16);
            uint8_t* zeros = scales + scale_bytes;
            uint8_t* minima = zeros + (matrix.has_zeros ? 32 : 0);
            for (int64_t lane = 0; lane < 16; ++lane) {
                const int64_t output = output_of(matrix, tile, lane);
                if (output < 0) continue;
                const auto at = static_cast<size_t>(output * sample.blocks + b);
                put_scale(matrix.scale_type, scales, lane, sample.scales[at]);
                if (matrix.has_zeros) zeros[lane] = sample.zeros[at];
                if (matrix.has_minimum) put_scale(matrix.scale_type, minima, lane, sample.minima[at]);
                for (int64_t k = 0; k < block; ++k) {
                    const int64_t input = b * block + k;
                    const uint8_t level = input < matrix.inputs
                                              ? sample.levels[static_cast<size_t>(output * matrix.inputs + input)]
                                              : sample.zeros[at];
                    if (!int4) {
                        record[k / 4 * 64 + lane * 4 + k % 4] = level;
                    } else {
                        record[k / 8 * 64 + lane * 4 + k % 4] |= static_cast<uint8_t>(k % 8 < 4 ? level : level << 4);
                    }
                }
            }
            record = minima + (matrix.has_minimum ? scale_bytes : 0);
        }
    }
}

void draw_and_pack_floats(Sample& sample, Kind kind, Random& random) {
    const PackedMatrix& matrix = sample.matrix;
    sample.weights.resize(static_cast<size_t>(matrix.outputs * matrix.inputs));
    for (float& weight : sample.weights) {
        weight = kind == Kind::usual ? uniform(random, -0.1f, 0.1f)
                                     : std::ldexp(uniform(random, -1, 1), static_cast<int>(between(random, -12, 12)));
        if (matrix.format == Format::fp16) weight = float_of_half(half_of(weight));
        if (matrix.format == Format::bf16) weight = float_of_bfloat(bfloat_of(weight));
    }
    uint8_t* to = sample.bytes->get();
    for (int64_t tile = 0; tile < (matrix.outputs + 15) / 16; ++tile) {
        for (int64_t k = 0; k < matrix.inputs; ++k) {
            for (int64_t lane = 0; lane < 16; ++lane) {
                const int64_t output = output_of(matrix, tile, lane);
                const float weight =
                    output < 0 ? 0.0f : sample.weights[static_cast<size_t>(output * matrix.inputs + k)];
                if (matrix.format == Format::fp32) {
                    std::memcpy(to, &weight, 4);
                    to += 4;
                    continue;
                }
                const uint16_t stored = matrix.format == Format::fp16 ? half_of(weight) : bfloat_of(weight);
                std::memcpy(to, &stored, 2);
                to += 2;
            }
        }
    }
}

}  // namespace

Sample sample_of(const PackedMatrix& description, Kind kind, Random& random) {
    Sample sample;
    sample.matrix = description;
    sample.matrix.bytes = specruntime::packed_bytes(description);
    sample.bytes = std::make_unique<Bytes>(sample.matrix.bytes);
    std::memset(sample.bytes->get(), 0, sample.matrix.bytes);
    sample.matrix.data = sample.bytes->get();
    if (description.rounding == Rounding::unrounded) {
        draw_and_pack_floats(sample, kind, random);
    } else {
        draw_integers(sample, kind, random);
        pack_integers(sample);
    }
    return sample;
}

}  // namespace tests
