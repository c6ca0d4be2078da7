// The path amx: as avx512, and tile registers for many rows (`takes_tiles`) (Intel servers since 2023).
#include "dispatch.h"
#include "simd/avx512.h"

namespace specruntime {
namespace SPECRUNTIME_ISA {
// Rows that share one reading of tiles, and how many tiles they take at once: as many as keep their sums in registers.
constexpr int kIntegerRows = 6;
constexpr int kFineRows = 4;
constexpr int kIntegerTiles = 2;
// Rows of one tile alone: a window of no more passes over the weights once.
constexpr int kIntegerRowsAlone = 12;
constexpr int kFineRowsAlone = 8;
constexpr int kFloatRows = 12;
constexpr size_t kPrefetchDistance = 2048;
}  // namespace SPECRUNTIME_ISA
}  // namespace specruntime

#include "simd/lanes_avx512.h"

#include "attention/kernel.h"
#include "matmul/amx_product.h"
#include "matmul/table.h"

namespace specruntime {
extern const Path path_amx;
const Path path_amx = {"amx", &SPECRUNTIME_ISA::kAmxKernels,
                       &SPECRUNTIME_ISA::attention_kernels<SPECRUNTIME_ISA::Lanes16>};
}  // namespace specruntime
