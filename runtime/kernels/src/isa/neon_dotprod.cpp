// The path neon_dotprod: signed products of bytes (sdot) on 32 q registers (ARMv8.2 and later, Apple M1).
#include "dispatch.h"
#include "simd/neon_bytes.h"

namespace specruntime {
namespace SPECRUNTIME_ISA {
// Rows that share one reading of tiles, and how many tiles they take at once: as many as keep their sums in registers.
constexpr int kIntegerRows = 5;
constexpr int kFineRows = 2;
constexpr int kIntegerTiles = 1;
constexpr int kIntegerRowsAlone = kIntegerRows;
constexpr int kFineRowsAlone = kFineRows;
constexpr int kFloatRows = 6;
// Bytes ahead of the weights in use that are asked for. Not measured on such a processor.
constexpr size_t kPrefetchDistance = 2048;
}  // namespace SPECRUNTIME_ISA
}  // namespace specruntime

#include "simd/lanes_neon.h"

#include "attention/kernel.h"
#include "matmul/table.h"

namespace specruntime {
extern const Path path_neon_dotprod;
const Path path_neon_dotprod = {"neon_dotprod", &SPECRUNTIME_ISA::kMatmulKernels,
                                &SPECRUNTIME_ISA::attention_kernels<SPECRUNTIME_ISA::Lanes8>};
}  // namespace specruntime
