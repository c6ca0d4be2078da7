// The path avx512: products of 16 outputs in one of 32 zmm registers (Intel servers since 2019).
#include "simd/avx512.h"
#include "dispatch.h"

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
// Bytes ahead of the weights in use that are asked for: what measured best on Intel servers.
constexpr size_t kPrefetchDistance = 2048;
}  // namespace SPECRUNTIME_ISA
}  // namespace specruntime

#include "simd/lanes_avx512.h"

#include "attention/kernel.h"
#include "matmul/table.h"

namespace specruntime {
extern const Path path_avx512;
const Path path_avx512 = {"avx512", &SPECRUNTIME_ISA::kMatmulKernels,
                          &SPECRUNTIME_ISA::attention_kernels<SPECRUNTIME_ISA::Lanes16>};
}  // namespace specruntime
