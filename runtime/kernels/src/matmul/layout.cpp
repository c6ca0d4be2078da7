// The packed layout: attribute words, sizes, and what makes a matrix unfit.
#include <cstdint>

#include "geometry.h"
#include "matmul.h"

namespace specruntime {
namespace {

// The integer sums of one scale are 32 bits: 255 * 127 * inputs must fit.
constexpr int64_t kMostInputsOfAScale = 60000;
constexpr int64_t kMostSize = int64_t{1} << 31;

template <typename Value>
struct Word {
    const char* word;
    Value value;
};

template <typename Value, size_t Count>
bool parse(const Word<Value> (&words)[Count], const std::string& word, Value* value) {
    for (const Word<Value>& known : words) {
        if (word != known.word) continue;
        *value = known.value;
        return true;
    }
    return false;
}

bool is_integer(Format format) { return format == Format::int8 || format == Format::int4; }

std::string check_integer(const PackedMatrix& matrix) {
    if (matrix.rounding == Rounding::unrounded) return "integer weights take rows rounded in blocks, fine or rows";
    if (matrix.block != 16 && matrix.block != 32 && matrix.block != 64 && matrix.block != 128) {
        return "block is " + std::to_string(matrix.block) + ": it must be 16, 32, 64 or 128";
    }
    if (matrix.rounding != Rounding::rows) return "";
    if (matrix.format != Format::int8 || matrix.block != 32 || matrix.scale_type != ScaleType::fp32) {
        return "rows = rows takes format int8 in blocks of 32 with fp32 scales";
    }
    if (matrix.has_zeros || matrix.has_minimum) return "rows = rows takes neither zeros nor a minimum";
    if (matrix.inputs > kMostInputsOfAScale) return "rows = rows takes at most 60000 inputs";
    return "";
}

std::string check_description(const PackedMatrix& matrix) {
    if (matrix.outputs < 1 || matrix.inputs < 1 || matrix.outputs > kMostSize || matrix.inputs > kMostSize) {
        return "N and K must be positive and less than 2^31";
    }
    if (matrix.activation != Activation::none && matrix.outputs % 2 != 0) {
        return "an activation takes as many gates as ups, N is " + std::to_string(matrix.outputs);
    }
    if (is_integer(matrix.format)) return check_integer(matrix);
    if (matrix.rounding != Rounding::unrounded) return "float weights take rows = float";
    if (matrix.has_zeros || matrix.has_minimum) return "float weights have neither zeros nor a minimum";
    return "";
}

}  // namespace

bool parse_format(const std::string& word, Format* format) {
    static const Word<Format> words[] = {{"int8", Format::int8},
                                         {"int4", Format::int4},
                                         {"fp32", Format::fp32},
                                         {"fp16", Format::fp16},
                                         {"bf16", Format::bf16}};
    return parse(words, word, format);
}

bool parse_scale_type(const std::string& word, ScaleType* scale_type) {
    static const Word<ScaleType> words[] = {{"fp16", ScaleType::fp16}, {"fp32", ScaleType::fp32}};
    return parse(words, word, scale_type);
}

bool parse_rounding(const std::string& word, Rounding* rounding) {
    static const Word<Rounding> words[] = {{"blocks", Rounding::blocks},
                                           {"fine", Rounding::fine},
                                           {"rows", Rounding::rows},
                                           {"float", Rounding::unrounded}};
    return parse(words, word, rounding);
}

bool parse_activation(const std::string& word, Activation* activation) {
    static const Word<Activation> words[] = {{"none", Activation::none},
                                             {"silu", Activation::silu},
                                             {"gelu", Activation::gelu},
                                             {"gelu_tanh", Activation::gelu_tanh}};
    return parse(words, word, activation);
}

Geometry geometry_of(const PackedMatrix& matrix) {
    Geometry geometry = {};
    geometry.tiles = (matrix.outputs + kTileOutputs - 1) / kTileOutputs;
    if (!is_integer(matrix.format)) {
        geometry.blocks = 1;
        geometry.block = geometry.padded_inputs = matrix.inputs;
        geometry.tile_bytes =
            static_cast<size_t>(matrix.inputs) * kTileOutputs * (matrix.format == Format::fp32 ? 4 : 2);
        return geometry;
    }
    const int64_t blocks = (matrix.inputs + matrix.block - 1) / matrix.block;
    geometry.padded_inputs = blocks * matrix.block;
    const bool one_scale = matrix.rounding == Rounding::rows;
    geometry.blocks = one_scale ? 1 : blocks;
    geometry.block = one_scale ? geometry.padded_inputs : matrix.block;
    const size_t values = static_cast<size_t>(geometry.block) * kTileOutputs / (matrix.format == Format::int4 ? 2 : 1);
    const size_t scales = kTileOutputs * (matrix.scale_type == ScaleType::fp16 ? 2 : 4);
    geometry.scale_offset = values;
    geometry.zero_offset = values + scales;
    geometry.minimum_offset = geometry.zero_offset + (matrix.has_zeros ? 32 : 0);
    geometry.record_bytes = geometry.minimum_offset + (matrix.has_minimum ? scales : 0);
    geometry.tile_bytes = static_cast<size_t>(geometry.blocks) * geometry.record_bytes;
    return geometry;
}

size_t packed_bytes(const PackedMatrix& matrix) {
    if (!check_description(matrix).empty()) return 0;
    const Geometry geometry = geometry_of(matrix);
    return static_cast<size_t>(geometry.tiles) * geometry.tile_bytes;
}

std::string check_matrix(const PackedMatrix& matrix) {
    const std::string unfit = check_description(matrix);
    if (!unfit.empty()) return unfit;
    const size_t expected = packed_bytes(matrix);
    if (matrix.bytes != expected) {
        return "the packed weights take " + std::to_string(matrix.bytes) + " bytes, this matrix takes " +
               std::to_string(expected);
    }
    if (matrix.data == nullptr || reinterpret_cast<uintptr_t>(matrix.data) % 32 != 0) {
        return "the packed weights are not aligned to 32 bytes";
    }
    return "";
}

}  // namespace specruntime
