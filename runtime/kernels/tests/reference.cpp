#include "reference.h"

#include <cmath>
#include <limits>

namespace tests {

using specruntime::Activation;
using specruntime::Format;
using specruntime::PackedMatrix;
using specruntime::Rounding;

namespace {

struct Rounded {
    float scale = 0;
    std::vector<int64_t> levels;
};

Rounded round_block(const float* x, int64_t count, float top) {
    Rounded rounded;
    rounded.levels.assign(static_cast<size_t>(count), 0);
    float largest = 0;
    for (int64_t k = 0; k < count; ++k) {
        if (!std::isfinite(x[k])) {
            rounded.scale = std::numeric_limits<float>::quiet_NaN();
            return rounded;
        }
        largest = std::fmax(largest, std::fabs(x[k]));
    }
    if (largest < 1e-30f) return rounded;
    rounded.scale = largest / top;
    const float inverse = top / largest;
    for (int64_t k = 0; k < count; ++k) {
        rounded.levels[static_cast<size_t>(k)] = static_cast<int64_t>(std::nearbyint(x[k] * inverse));
    }
    return rounded;
}

float integer_sum(const Sample& sample, const std::vector<Rounded>& row, int64_t output) {
    const PackedMatrix& matrix = sample.matrix;
    const int64_t block = matrix.rounding == Rounding::rows ? matrix.inputs : matrix.block;
    const int zero_level = matrix.format == Format::int4 ? 8 : 128;
    float y = 0;
    for (int64_t b = 0; b < sample.blocks; ++b) {
        const auto at = static_cast<size_t>(output * sample.blocks + b);
        const int zero = matrix.has_zeros ? sample.zeros[at] : zero_level;
        const Rounded& rounded = row[static_cast<size_t>(b)];
        int64_t sum = 0, levels = 0;
        for (size_t k = 0; k < rounded.levels.size(); ++k) {
            const auto input = static_cast<size_t>(output * matrix.inputs + b * block) + k;
            sum += (static_cast<int64_t>(sample.levels[input]) - zero) * rounded.levels[k];
            levels += rounded.levels[k];
        }
        y = std::fma(static_cast<float>(sum) * rounded.scale, sample.scales[at], y);
        if (matrix.has_minimum) {
            const float centre = std::fma(static_cast<float>(zero), sample.scales[at], sample.minima[at]);
            y = std::fma(centre, rounded.scale * static_cast<float>(levels), y);
        }
    }
    return y;
}

double activated(Activation activation, double x) {
    if (activation == Activation::silu) return x / (1 + std::exp(-x));
    if (activation == Activation::gelu) return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
    return 0.5 * x * (1 + std::tanh(std::sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
}

}  // namespace

std::vector<float> reference_sums(const Sample& sample, const std::vector<float>& x, int64_t rows, const float* bias) {
    const PackedMatrix& matrix = sample.matrix;
    const int64_t inputs = matrix.inputs, block = matrix.rounding == Rounding::rows ? inputs : matrix.block;
    const float top = matrix.rounding == Rounding::fine ? 16256.0f : 127.0f;
    std::vector<float> y(static_cast<size_t>(rows * matrix.outputs));
    for (int64_t row = 0; row < rows; ++row) {
        const float* from = x.data() + row * inputs;
        std::vector<Rounded> rounded;
        for (int64_t b = 0; b < sample.blocks; ++b) {
            rounded.push_back(round_block(from + b * block, std::min(block, inputs - b * block), top));
        }
        for (int64_t output = 0; output < matrix.outputs; ++output) {
            float sum = 0;
            if (matrix.rounding == Rounding::unrounded) {
                for (int64_t k = 0; k < inputs; ++k) {
                    sum = std::fma(sample.weights[static_cast<size_t>(output * inputs + k)], from[k], sum);
                }
            } else {
                sum = integer_sum(sample, rounded, output);
            }
            y[static_cast<size_t>(row * matrix.outputs + output)] = bias == nullptr ? sum : sum + bias[output];
        }
    }
    return y;
}

std::vector<double> reference_activation(const Sample& sample, const std::vector<float>& sums, int64_t rows) {
    const PackedMatrix& matrix = sample.matrix;
    const int64_t half = matrix.outputs / 2;
    std::vector<double> y;
    for (int64_t row = 0; row < rows; ++row) {
        const float* from = sums.data() + row * matrix.outputs;
        for (int64_t i = 0; i < half; ++i) y.push_back(activated(matrix.activation, from[i]) * from[half + i]);
    }
    return y;
}

std::vector<float> reference_embedding(const Sample& sample, int64_t output) {
    const PackedMatrix& matrix = sample.matrix;
    std::vector<float> y;
    const int64_t block = matrix.rounding == Rounding::rows ? matrix.inputs : matrix.block;
    for (int64_t k = 0; k < matrix.inputs; ++k) {
        const auto input = static_cast<size_t>(output * matrix.inputs + k);
        if (matrix.rounding == Rounding::unrounded) {
            y.push_back(sample.weights[input]);
            continue;
        }
        const auto at = static_cast<size_t>(output * sample.blocks + k / block);
        const int zero = matrix.has_zeros ? sample.zeros[at] : matrix.format == Format::int4 ? 8 : 128;
        const auto level = static_cast<float>(sample.levels[input] - zero);
        const float scale = sample.scales[at];
        if (matrix.has_minimum) {
            y.push_back(std::fma(scale, level, std::fma(static_cast<float>(zero), scale, sample.minima[at])));
        } else {
            y.push_back(scale * level);
        }
    }
    return y;
}

}  // namespace tests
