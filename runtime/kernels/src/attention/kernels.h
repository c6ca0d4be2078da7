// What the planning of attention (plan.cpp, compiled for any processor) hands to the functions of one instruction set
// (kernel.h). Data only: inline functions shared between files of different instruction sets would mix their code.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "attention.h"

namespace specruntime {

// Keys are taken in chunks at fixed positions; each chunk has a maximum of its own, and chunks merge in order.
constexpr int attention_chunk = 128;
// Most rows (window rows times query heads of a group) that share a reading of the keys.
constexpr int attention_block_rows = 64;

// A key of the window that a row of a tree sees: the position it would have in a chain of the row's ancestors, less
// cache_length, and the window row that holds it.
struct WindowKey {
    std::int32_t slot;
    std::int32_t node;
};

// What one window row sees, in positions of its own chain of ancestors.
struct RowSpan {
    std::int64_t first;      // first key seen, where any is
    std::int64_t end;        // one past the last key
    const WindowKey* keys;   // tree: the keys of the window that are seen, in order; chain: null
    std::int32_t key_count;  // of a tree
};

// One block of window rows of one sequence and one key head, and the chunks of it that one part of the work takes.
struct AttentionPart {
    std::int32_t batch;
    std::int32_t kv_head;
    std::int32_t row_begin, row_end;      // window rows
    std::int64_t chunk_begin, chunk_end;  // of this part
    std::int64_t block_begin, block_end;  // chunks of all parts of the block
    std::atomic<std::int32_t>* open;      // parts of the block that are not done; null: this part is the whole block
    // For blocks in several parts: per chunk of the block and row, output, maximum and sum.
    float* partial_out;
    float* partial_maximum;
    float* partial_sum;
};

// The working memory of a part while it runs: sizes of its pieces in order, in bytes, each a multiple of 64.
struct AttentionMemory {
    std::size_t tile;         // transposed keys
    std::size_t scores;       // [rows, chunk]
    std::size_t tree_scores;  // [rows, width]
    std::size_t chunk_out;    // [rows, head_size]
    std::size_t out;          // [rows, head_size]
    std::size_t vectors;      // maximum and sum of the chunk and of the block: 4 x [rows]
    std::size_t scales;       // key and value scales of a chunk: 2 x [chunk]; of the window of a tree: 2 x [width]
};

struct AttentionJob {
    const AttentionShape* shape;
    const AttentionCall* call;
    int group;                // query heads of a key head
    int tree_stride;          // floats of a row of tree_scores
    bool tree;                // some window is no chain
    std::size_t row_bytes;    // of the cache
    std::size_t query_bytes;  // of a prepared query row
    // [batch, kv_heads, width, group] rows: rotated and scaled; floats for an fp32 cache, pairs of 16-bit levels for
    // int8
    std::uint8_t* queries;
    float* query_scales;          // of the levels
    const RowSpan* spans;         // [batch, width]
    const std::int32_t* lengths;  // [batch] rows that are no padding
    const AttentionPart* parts;
    AttentionMemory memory;
};

// The functions of one instruction set.
struct AttentionKernels {
    // Rotate window row `row` (of batch * width), write its key and value into the cache, keep its queries.
    void (*prepare)(const AttentionJob& job, std::size_t row);
    // Do one part in memory laid out as job.memory says. Writes the output where the part is a whole block.
    void (*attend)(const AttentionJob& job, const AttentionPart& part, std::uint8_t* memory);
    // Merge the chunks of a block whose parts are all done, and write the output.
    void (*merge)(const AttentionJob& job, const AttentionPart& part, std::uint8_t* memory);
    // Bytes of transposed keys that `attend` wants.
    std::size_t (*tile_bytes)(const AttentionShape& shape);
};

}  // namespace specruntime
