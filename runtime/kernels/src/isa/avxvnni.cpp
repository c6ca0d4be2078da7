// The path avxvnni: vpdpbusd on 16 ymm registers (client processors since 2021 that lack AVX-512).
#define SPECRUNTIME_AVXVNNI 1
#include "dispatch.h"
#include "simd/avx_bytes.h"

namespace specruntime {
namespace SPECRUNTIME_ISA {
// Rows that share one reading of tiles, and how many tiles they take at once: as many as keep their sums in registers.
constexpr int kIntegerRows = 6;
constexpr int kFineRows = 4;
constexpr int kIntegerTiles = 1;
constexpr int kIntegerRowsAlone = kIntegerRows;
constexpr int kFineRowsAlone = kFineRows;
constexpr int kFloatRows = 6;
// Bytes ahead of the weights in use that are asked for: what measured best on Intel servers.
constexpr size_t kPrefetchDistance = 2048;
}  // namespace SPECRUNTIME_ISA
}  // namespace specruntime

#include "simd/lanes_avx2.h"

#include "attention/kernel.h"
#include "matmul/table.h"

namespace specruntime {
extern const Path path_avxvnni;
const Path path_avxvnni = {"avxvnni", &SPECRUNTIME_ISA::kMatmulKernels,
                           &SPECRUNTIME_ISA::attention_kernels<SPECRUNTIME_ISA::Lanes8>};
}  // namespace specruntime
