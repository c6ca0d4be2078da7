// The path amx: as avx512, and tile registers for sixteen rows or more (Intel servers since 2023).
#include "dispatch.h"
#include "simd/avx512.h"

namespace specruntime {
namespace SPECRUNTIME_ISA {
// As of avx512.
constexpr int kIntegerRows = 6;
constexpr int kFineRows = 4;
constexpr int kIntegerTiles = 2;  // at once: a row's bytes are loaded once for both
constexpr int kFloatRows = 12;
constexpr size_t kPrefetchDistance = 2048;
}  // namespace SPECRUNTIME_ISA
}  // namespace specruntime

#include "matmul/table.h"

#include "matmul/amx_product.h"

namespace specruntime {
extern const Path path_amx;
const Path path_amx = {"amx", &SPECRUNTIME_ISA::kAmxKernels, nullptr};
}  // namespace specruntime
