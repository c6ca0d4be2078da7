// The arithmetic of the window product written down plainly, one number at a time: what every path must equal.
#pragma once

#include <vector>

#include "packing.h"

namespace tests {

/// [rows, outputs] before the activation, the bias added: equal to the kernels' sums to the last bit.
std::vector<float> reference_sums(const Sample& sample, const std::vector<float>& x, int64_t rows, const float* bias);

/// [rows, results]: the activation of the sums, in double precision.
std::vector<double> reference_activation(const Sample& sample, const std::vector<float>& sums, int64_t rows);

/// The weights of one output as an embedding.
std::vector<float> reference_embedding(const Sample& sample, int64_t output);

}  // namespace tests
