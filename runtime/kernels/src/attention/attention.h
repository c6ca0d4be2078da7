// Attention of a window of rows over a cache that is written and read in place. No ONNX Runtime here.
//
// Exact by construction: the bits of a row's output (and of its cache rows) are a function of that row, of the cache
// rows it sees and of its position only. Not of the window's width, padding, rows it does not see, neighbours in the
// batch, number of threads, instruction set, nor of where its ancestors lie (in the cache, or at any node of a tree).
#pragma once
#include <cstddef>
#include <cstdint>

#include "../parallel.h"
#include "../scratch.h"

namespace specruntime {

struct AttentionKernels;  // functions of one instruction set: kernels.h

enum class CacheType {
    fp32,  // row: head_size floats
    int8,  // row: head_size levels in -127..127, then the row's fp32 scale (max|x| / 127) in 4 bytes of any alignment
};

// What is fixed for a node of the graph.
struct AttentionShape {
    int heads = 0;
    int kv_heads = 0;                 // divides heads
    int head_size = 0;                // a multiple of 8, at most 512
    float scale = 0;                  // factor of q.k; 0 stands for 1 / sqrt(head_size)
    float softcap = 0;                // scores become softcap * tanh(score / softcap); 0: none
    std::int64_t local_window = -1;   // a row sees keys less than so many positions back, itself included; -1: all
    int rotary_dims = 0;              // leading dims of each head that turn, even; 0: no rotary embedding
    bool rotary_interleaved = false;  // pairs are (2i, 2i + 1); else (i, i + rotary_dims / 2)
    CacheType cache = CacheType::fp32;
};

// One run of a node. Rows are window rows; b counts the batch, i the rows of a window.
struct AttentionCall {
    int batch = 0;
    int width = 0;
    std::int64_t capacity = 0;  // rows of the cache

    // Row (b, i) of each starts at pointer + (b * width + i) * stride floats. See set_packed for packed QKV.
    const float* query = nullptr;
    const float* key = nullptr;
    const float* value = nullptr;
    std::size_t query_stride = 0, key_stride = 0, value_stride = 0;

    // [batch, kv_heads, capacity, row], row as CacheType says. Row cache_length[b] + i is written for row i.
    void* key_cache = nullptr;
    void* value_cache = nullptr;
    const std::int64_t* cache_length = nullptr;   // [batch] committed rows
    const std::int32_t* query_lengths = nullptr;  // [batch] rows that are no padding, 0..width; null: all

    // [rotary_positions, rotary_dims / 2] each; unused without rotary_dims
    const float* cos = nullptr;
    const float* sin = nullptr;
    std::int64_t rotary_positions = 0;
    // [batch, width]; null: cache_length + i. Used by the rotary embedding and by local_window. A committed key's
    // position is its cache row.
    const std::int64_t* position_ids = nullptr;
    // [batch, width, width]: row i sees the key of row j; null: j <= i (a chain). Columns from query_lengths on are not
    // read. A row's window keys follow the committed ones in order of depth (how many rows a node sees), then of index.
    const bool* window_mask = nullptr;
    const float* sinks = nullptr;  // [heads] one more logit in the denominator; null: none

    float* out = nullptr;  // [batch, width, heads * head_size]; padding rows get zeros
};

// Point query, key and value into packed rows [batch, width, (heads + 2 * kv_heads) * head_size].
void set_packed(AttentionCall& call, const AttentionShape& shape, const float* packed);

// Bytes of a cache row.
std::size_t cache_row_bytes(const AttentionShape& shape);

// Why the kernels cannot serve a node, or cannot serve a call: one line in English, or null where all is well.
// window_attention trusts its arguments: ask both before, the first once, the second in every call (it reads lengths
// and positions only, nothing of size).
const char* refuse_shape(const AttentionShape& shape);
const char* refuse_call(const AttentionShape& shape, const AttentionCall& call);

// Rotate, write the window's rows into the cache, attend. `kernels` is the entry of the dispatch table.
// Allocates only when `scratch` meets its largest call so far.
void window_attention(const AttentionKernels& kernels, const AttentionShape& shape, const AttentionCall& call,
                      Scratch& scratch, Pool pool);

}  // namespace specruntime
