// The functions of this instruction set, as matmul.cpp calls them. An isa file includes it after its vectors and
// after the constants of its kernels: kIntegerRows, kFineRows, kIntegerTiles, kIntegerRowsAlone, kFineRowsAlone,
// kFloatRows, kPrefetchDistance.
#pragma once

#include "embedding.h"
#include "product.h"
#include "rounding.h"

namespace specruntime {
namespace SPECRUNTIME_ISA {

inline size_t no_scratch(const PackedMatrix&, const Geometry&, int64_t) { return 0; }

constexpr MatmulKernels kMatmulKernels = {round_rows, product, embed, no_scratch};

}  // namespace SPECRUNTIME_ISA
}  // namespace specruntime
