// Window matrix product and embedding lookup over packed weights: the interface, without any ONNX Runtime.
//
// Every row of the result is the same to the last bit whatever the number of rows, the other rows, the split over
// threads and the path: integer sums are exact and each output adds its blocks (or its inputs, in the float formats)
// in order with explicit fused multiply-adds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "../dispatch.h"
#include "../parallel.h"
#include "../scratch.h"

namespace specruntime {

constexpr int kLayoutVersion = 1;  // of the packed bytes below
constexpr int kTileOutputs = 16;

enum class Format { int8, int4, fp32, fp16, bf16 };
enum class ScaleType { fp16, fp32 };

/// How a row of activations is rounded. `blocks`: 8 bits, a scale a block. `fine`: 15 bits, a scale a block.
/// `rows`: 8 bits, a scale a row; the weights have one scale an output (format int8 only). `unrounded`: float formats.
enum class Rounding { blocks, fine, rows, unrounded };

/// A gated activation: y = activation(gate) * up. A tile then holds 8 gates and the 8 matching ups, and there are
/// outputs/2 results. gelu is the one with erf, gelu_tanh the approximation with tanh.
enum class Activation { none, silu, gelu, gelu_tanh };

/// A matrix [outputs, inputs] as packed by the build (layout 1, see README.md). The bytes are not owned, must be
/// aligned to 32 bytes and stay valid while the matrix is in use.
struct PackedMatrix {
    const uint8_t* data = nullptr;
    size_t bytes = 0;
    int64_t outputs = 0;  // N
    int64_t inputs = 0;   // K
    Format format = Format::int8;
    int block = 32;  // 16, 32, 64 or 128; 32 with Rounding::rows; ignored by the float formats
    ScaleType scale_type = ScaleType::fp16;
    bool has_zeros = false;
    bool has_minimum = false;
    Rounding rounding = Rounding::blocks;
    Activation activation = Activation::none;
};

/// The words of the operators' attributes. False where the word is unknown.
bool parse_format(const std::string& word, Format* format);              // int8 int4 fp32 fp16 bf16
bool parse_scale_type(const std::string& word, ScaleType* scale_type);   // fp16 fp32
bool parse_rounding(const std::string& word, Rounding* rounding);        // blocks fine rows float
bool parse_activation(const std::string& word, Activation* activation);  // none silu gelu gelu_tanh

/// Bytes a matrix of this description takes; 0 where the description is not valid.
size_t packed_bytes(const PackedMatrix& matrix);

/// Empty where the matrix may be used; otherwise one line that says what does not fit (sizes, alignment, attributes).
/// Call it once when a kernel object is made: the functions below do not check again.
std::string check_matrix(const PackedMatrix& matrix);

/// Results a row: outputs, or outputs/2 with an activation.
int64_t results(const PackedMatrix& matrix);

/// y[rows, results] = x[rows, inputs] * matrix^T (+ bias), then the activation. x and y are dense.
/// bias: [outputs] or nullptr, in the order of the unpacked matrix: with an activation all gates, then all ups.
/// A row that holds an infinity or a NaN gives NaN where its numbers meet it, never another row.
void window_matmul(const Path& path, const PackedMatrix& matrix, const float* x, int64_t rows, float* y,
                   const float* bias, ScratchPool& scratch, const Pool& pool);

/// y[count, inputs] = rows `ids` of the matrix (no activation). Empty on success; otherwise one line that names an id
/// outside [0, outputs), and y is undefined.
std::string window_embedding(const Path& path, const PackedMatrix& matrix, const int64_t* ids, int64_t count, float* y,
                             const Pool& pool);

}  // namespace specruntime
