// Random matrices, packed as the build packs them (layout 1), for the tests and the benchmark.
#pragma once

#include <cstdint>
#include <memory>
#include <new>
#include <random>
#include <vector>

#include "matmul/matmul.h"

namespace tests {

uint16_t half_of(float value);  // rounded to nearest even
float float_of_half(uint16_t half);
uint16_t bfloat_of(float value);
float float_of_bfloat(uint16_t stored);

using Random = std::mt19937_64;
inline int64_t between(Random& random, int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
}

/// Bytes aligned to a page.
class Bytes {
public:
    explicit Bytes(size_t count) : data_(static_cast<uint8_t*>(::operator new(count, std::align_val_t(4096)))) {}
    uint8_t* get() const { return data_.get(); }

private:
    struct Free {
        void operator()(uint8_t* data) const { ::operator delete(data, std::align_val_t(4096)); }
    };
    std::unique_ptr<uint8_t, Free> data_;
};

/// The unpacked numbers of a matrix and its packed bytes.
struct Sample {
    specruntime::PackedMatrix matrix;
    int64_t blocks = 0;           // scales of an output: 1 with Rounding::rows
    std::vector<uint8_t> levels;  // [outputs, inputs]
    std::vector<uint8_t> zeros;   // [outputs, blocks]
    std::vector<float> scales;    // [outputs, blocks], as stored
    std::vector<float> minima;
    std::vector<float> weights;  // float formats: [outputs, inputs], as stored
    std::unique_ptr<Bytes> bytes;
};

/// What the numbers are like: usual ones, or the largest in magnitude, which show what saturates.
enum class Kind { usual, extreme };

Sample sample_of(const specruntime::PackedMatrix& description, Kind kind, Random& random);

}  // namespace tests
