#include "ort/packed.h"

#include <limits>

namespace specruntime::ort {

namespace {

template <typename Value>
Value parsed(const Node& node, const char* key, std::optional<std::string> otherwise, const char* words,
             bool (*parse)(const std::string&, Value*)) {
    std::string word = node.word(key, otherwise);
    Value value{};
    if (!parse(word, &value)) {
        node.refuse(std::string("attribute ") + key + " is '" + word + "', expected " + words);
    }
    return value;
}

int64_t size_of(const Node& node, const char* key) {
    int64_t value = node.integer(key);
    constexpr int64_t limit = std::numeric_limits<int32_t>::max();
    if (value < 1 || value > limit) {
        node.refuse(std::string("attribute ") + key + " is " + std::to_string(value) + ", expected 1 to " +
                    std::to_string(limit));
    }
    return value;
}

}  // namespace

PackedMatrix read_matrix(const Node& node, size_t index) {
    PackedMatrix matrix;
    matrix.outputs = size_of(node, "N");
    matrix.inputs = size_of(node, "K");
    matrix.format = parsed(node, "format", std::nullopt, "int8, int4, fp32, fp16 or bf16", parse_format);
    const bool integers = matrix.format == Format::int8 || matrix.format == Format::int4;
    const char* rows = integers ? "blocks" : "float";
    matrix.rounding = parsed(node, "rows", rows, "blocks, fine, rows or float", parse_rounding);
    matrix.block = static_cast<int>(node.integer("block", 32));
    matrix.scale_type = parsed(node, "scale_type", "fp16", "fp16 or fp32", parse_scale_type);
    matrix.has_zeros = node.flag("has_zeros");
    matrix.has_minimum = node.flag("has_minimum");
    matrix.activation = parsed(node, "activation", "none", "none, silu, gelu or gelu_tanh", parse_activation);

    const Tensor weights = node.constant(index, "weights");
    if (weights.type != kUint8 || weights.sizes.rank != 1) {
        node.refuse("weights are " + std::string(type_name(weights.type)) + " " + weights.sizes.words() +
                    ", expected packed bytes, uint8 [bytes]");
    }
    matrix.data = weights.as<uint8_t>();
    matrix.bytes = weights.bytes();
    const std::string problem = check_matrix(matrix);
    if (!problem.empty()) node.refuse(problem);
    return matrix;
}

}  // namespace specruntime::ort
