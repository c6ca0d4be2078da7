// The path avx512vnni: vpdpbusd on 32 ymm registers, where products of 512 bits do less work in a cycle (AMD).
#define SPECRUNTIME_AVX512VNNI 1
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
// Bytes ahead of the weights in use that are asked for: what measured best on Zen 5.
constexpr size_t kPrefetchDistance = 8192;
}  // namespace SPECRUNTIME_ISA
}  // namespace specruntime

#include "simd/lanes_avx2.h"

#include "attention/kernel.h"
#include "matmul/table.h"

namespace specruntime {
extern const Path path_avx512vnni;
const Path path_avx512vnni = {"avx512vnni", &SPECRUNTIME_ISA::kMatmulKernels,
                              &SPECRUNTIME_ISA::attention_kernels<SPECRUNTIME_ISA::Lanes8>};
}  // namespace specruntime
