// What WindowMatMul and WindowEmbedding have in common: the attributes that describe packed weights.
#pragma once

#include "matmul/matmul.h"
#include "ort/node.h"

namespace specruntime::ort {

// The matrix of a node, whose bytes are input `weights` at `index`, read in place. Refuses what does not fit together.
PackedMatrix read_matrix(const Node& node, size_t index);

}  // namespace specruntime::ort
