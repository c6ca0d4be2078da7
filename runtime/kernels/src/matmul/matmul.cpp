#include "matmul.h"

#include <algorithm>

#include "geometry.h"
#include "kernels.h"

namespace specruntime {
namespace {

// Rows are taken in panels, so that the working memory has a bound; a panel of rounded rows stays in the second cache.
constexpr int64_t kPanelRows = 512;
// Rows of a part where there are many: their bytes stay in the second cache while the part's tiles pass by.
// A multiple of what the kernels take at once (6, 12 and 16).
constexpr int64_t kPartRows = 96;
// Least work of a part, in bytes of weights that four rows read: a part of less is mostly the cost of starting it.
constexpr int64_t kPartWork = 32 << 10;
constexpr int64_t kMostParts = 128;
// Least inputs of a part of rounding.
constexpr int64_t kRoundingWork = 16 << 10;

bool is_float(Format format) { return format == Format::fp32 || format == Format::fp16 || format == Format::bf16; }

/// Everything the parts of one call share.
struct Call {
    const MatmulKernels* kernels;
    ProductPart part;  // without its rows and tiles
    int64_t rows;
    int64_t row_parts, tile_parts;
    int64_t rounding_rows;  // of a part
    size_t part_scratch;
    ScratchPool* scratch;
};

int64_t share(int64_t total, int64_t parts, int64_t index) { return total * index / parts; }

void round_part(void* job, size_t index) {
    const Call& call = *static_cast<const Call*>(job);
    const int64_t first = static_cast<int64_t>(index) * call.rounding_rows;
    call.kernels->round_rows({call.part.matrix, call.part.geometry, call.part.x, call.part.rows, first,
                              std::min(first + call.rounding_rows, call.rows)});
}

void product_part(void* job, size_t index) {
    const Call& call = *static_cast<const Call*>(job);
    // Parts run about in order: all rows pass over some tiles before the next tiles are read from memory.
    const int64_t tile_part = static_cast<int64_t>(index) / call.row_parts;
    const int64_t row_part = static_cast<int64_t>(index) % call.row_parts;
    ProductPart part = call.part;
    part.first_row = row_part * kPartRows;
    part.last_row = std::min(call.rows, part.first_row + kPartRows);
    part.first_tile = share(part.geometry->tiles, call.tile_parts, tile_part);
    part.last_tile = share(part.geometry->tiles, call.tile_parts, tile_part + 1);
    if (call.part_scratch == 0) {
        call.kernels->product(part);
        return;
    }
    ScratchPool::Lease lease(*call.scratch);
    part.scratch = lease->reserve(call.part_scratch);
    call.kernels->product(part);
}

void run_product(Call& call, const Pool& pool) {
    const Geometry& geometry = *call.part.geometry;
    call.row_parts = (call.rows + kPartRows - 1) / kPartRows;
    const int64_t part_rows = std::min(call.rows, kPartRows);
    const int64_t work = geometry.tiles * static_cast<int64_t>(geometry.tile_bytes) * ((part_rows + 3) / 4);
    const int64_t most = std::max<int64_t>(1, kMostParts / call.row_parts);
    call.tile_parts = std::max<int64_t>(1, std::min({work / kPartWork, geometry.tiles, most}));
    call.part_scratch = call.kernels->part_scratch(*call.part.matrix, geometry, part_rows);
    pool.run(static_cast<size_t>(call.row_parts * call.tile_parts), product_part, &call);
}

void run_panel(Call& call, const Pool& pool) {
    const PackedMatrix& matrix = *call.part.matrix;
    const Geometry& geometry = *call.part.geometry;
    if (is_float(matrix.format)) {
        run_product(call, pool);
        return;
    }
    // A line more than the inputs take: rows whose distance is a power of two would share the sets of the first cache.
    const size_t stride = (static_cast<size_t>(geometry.padded_inputs) + 63) / 64 * 64 + 64;
    const size_t levels = stride * static_cast<size_t>(call.rows);
    const size_t blocks = sizeof(RowBlock) * static_cast<size_t>(call.rows * geometry.blocks);
    const bool fine = matrix.rounding == Rounding::fine;
    ScratchPool::Lease lease(*call.scratch);
    uint8_t* memory = lease->reserve(blocks + levels * (fine ? 2 : 1));
    call.part.rows.blocks = reinterpret_cast<RowBlock*>(memory);
    call.part.rows.high = reinterpret_cast<int8_t*>(memory + blocks);
    call.part.rows.low = fine ? call.part.rows.high + levels : nullptr;
    call.part.rows.stride = stride;
    call.rounding_rows = std::max<int64_t>(1, kRoundingWork / geometry.padded_inputs);
    pool.run(static_cast<size_t>((call.rows + call.rounding_rows - 1) / call.rounding_rows), round_part, &call);
    run_product(call, pool);
}

struct EmbeddingCall {
    const MatmulKernels* kernels;
    EmbeddingPart part;
    int64_t count, ids_of_a_part;
};

void embedding_part(void* job, size_t index) {
    const EmbeddingCall& call = *static_cast<const EmbeddingCall*>(job);
    EmbeddingPart part = call.part;
    part.first = static_cast<int64_t>(index) * call.ids_of_a_part;
    part.last = std::min(part.first + call.ids_of_a_part, call.count);
    call.kernels->embed(part);
}

}  // namespace

int64_t results(const PackedMatrix& matrix) {
    return matrix.activation == Activation::none ? matrix.outputs : matrix.outputs / 2;
}

void window_matmul(const Path& path, const PackedMatrix& matrix, const float* x, int64_t rows, float* y,
                   const float* bias, ScratchPool& scratch, const Pool& pool) {
    const Geometry geometry = geometry_of(matrix);
    for (int64_t first = 0; first < rows; first += kPanelRows) {
        Call call = {};
        call.kernels = path.matmul;
        call.part.matrix = &matrix;
        call.part.geometry = &geometry;
        call.part.x = x + first * matrix.inputs;
        call.part.y = y + first * results(matrix);
        call.part.bias = bias;
        call.rows = std::min(kPanelRows, rows - first);
        call.scratch = &scratch;
        run_panel(call, pool);
    }
}

std::string window_embedding(const Path& path, const PackedMatrix& matrix, const int64_t* ids, int64_t count, float* y,
                             const Pool& pool) {
    for (int64_t i = 0; i < count; ++i) {
        if (ids[i] < 0 || ids[i] >= matrix.outputs) {
            return "id " + std::to_string(ids[i]) + " is outside the table of " + std::to_string(matrix.outputs);
        }
    }
    const Geometry geometry = geometry_of(matrix);
    const int64_t ids_of_a_part = std::max<int64_t>(1, kRoundingWork / matrix.inputs);
    EmbeddingCall call = {path.matmul, {&matrix, &geometry, ids, 0, 0, y}, count, ids_of_a_part};
    pool.run(static_cast<size_t>((count + ids_of_a_part - 1) / ids_of_a_part), embedding_part, &call);
    return "";
}

}  // namespace specruntime
