// What every row sees, and how the work of a call is cut into parts.
#include "plan.h"

#include <algorithm>
#include <cmath>
#include <new>
#include <thread>

namespace specruntime {

namespace {

// Parts that a call is cut into where it is long enough: some for each thread of a large pool, not too small for one.
constexpr std::int64_t wanted_parts = 32;
// Most floats that wait to be merged. Beyond it parts become longer.
constexpr std::size_t most_partial_floats = std::size_t{4} << 20;

std::size_t rounded(std::size_t bytes) { return (bytes + 63) & ~std::size_t{63}; }

// Hands out pieces of one block of memory: first only counting, then for good.
class Pieces {
public:
    explicit Pieces(std::uint8_t* memory) : memory_(memory) {}

    template <class T>
    T* take(std::size_t count) {
        T* piece = memory_ != nullptr ? reinterpret_cast<T*>(memory_ + used_) : nullptr;
        used_ += rounded(count * sizeof(T));
        return piece;
    }
    std::size_t used() const { return used_; }

private:
    std::uint8_t* memory_;
    std::size_t used_ = 0;
};

std::int32_t length_of(const AttentionCall& call, int b) {
    return call.query_lengths != nullptr ? call.query_lengths[b] : call.width;
}

std::int64_t position_of(const AttentionCall& call, int b, std::int64_t i) {
    return call.position_ids != nullptr ? call.position_ids[static_cast<std::int64_t>(b) * call.width + i]
                                        : call.cache_length[b] + i;
}

const bool* mask_row(const AttentionCall& call, int b, std::int64_t i) {
    return call.window_mask + (static_cast<std::int64_t>(b) * call.width + i) * call.width;
}

// Whether row i of sequence b sees all rows up to itself, at consecutive positions: then its keys are one span.
bool is_chain(const AttentionShape& shape, const AttentionCall& call, int b) {
    const std::int32_t rows = length_of(call, b);
    for (std::int64_t i = 0; i < rows; ++i) {
        if (shape.local_window >= 0 && position_of(call, b, i) != call.cache_length[b] + i) return false;
        if (call.window_mask == nullptr) continue;
        const bool* sees = mask_row(call, b, i);
        int wrong = 0;
        for (std::int64_t j = 0; j <= i; ++j) wrong |= !sees[j];
        for (std::int64_t j = i + 1; j < rows; ++j) wrong |= sees[j];
        if (wrong != 0) return false;
    }
    return true;
}

std::int64_t first_seen(const AttentionShape& shape, std::int64_t position) {
    return shape.local_window < 0 ? 0 : std::max<std::int64_t>(0, position - shape.local_window + 1);
}

void fill_chain(const AttentionShape& shape, const AttentionCall& call, int b, RowSpan* spans) {
    for (std::int64_t i = 0; i < length_of(call, b); ++i) {
        const std::int64_t place = call.cache_length[b] + i;
        spans[i] = {first_seen(shape, place), place + 1, nullptr, 0};
    }
}

// `order` and `depths` hold one number a row; `keys` as many as rows of the window squared.
void fill_tree(const AttentionShape& shape, const AttentionCall& call, int b, RowSpan* spans, std::int32_t* order,
               std::int32_t* depths, WindowKey* keys) {
    const std::int32_t rows = length_of(call, b);
    for (std::int32_t i = 0; i < rows; ++i) {
        const bool* sees = mask_row(call, b, i);
        depths[i] = 0;
        for (std::int32_t j = 0; j < rows; ++j) depths[i] += sees[j];
        order[i] = i;
    }
    std::sort(order, order + rows,
              [&](std::int32_t a, std::int32_t c) { return depths[a] != depths[c] ? depths[a] < depths[c] : a < c; });
    for (std::int32_t i = 0; i < rows; ++i) {
        const std::int64_t position = position_of(call, b, i);
        const bool* sees = call.window_mask != nullptr ? mask_row(call, b, i) : nullptr;
        std::int32_t slot = 0, count = 0;
        for (std::int32_t k = 0; k < rows; ++k) {
            const std::int32_t node = order[k];
            if (sees != nullptr ? !sees[node] : node > i) continue;
            const bool near = shape.local_window < 0 || position - position_of(call, b, node) < shape.local_window;
            if (near) keys[count++] = {slot, node};
            ++slot;
        }
        spans[i] = {first_seen(shape, position), call.cache_length[b] + slot, keys, count};
        keys += count;
    }
}

// A block of window rows: those that share a reading of the keys.
struct Block {
    int batch;
    std::int32_t row_begin, row_end;
    std::int64_t chunk_begin, chunk_end;
};

// Call use(block) for each block of window rows.
template <class Use>
void each_block(const AttentionJob& job, const Use& use) {
    const int most = std::max(1, attention_block_rows / job.group);
    for (int b = 0; b < job.call->batch; ++b) {
        const std::int32_t rows = job.lengths[b];
        const int blocks = (rows + most - 1) / most;
        for (int k = 0; k < blocks; ++k) {
            Block block{b, rows * k / blocks, rows * (k + 1) / blocks, 0, 0};
            std::int64_t first = INT64_MAX, end = 0;
            for (std::int32_t i = block.row_begin; i < block.row_end; ++i) {
                const RowSpan& span = job.spans[static_cast<std::int64_t>(b) * job.call->width + i];
                first = std::min(first, span.first);
                end = std::max(end, span.end);
            }
            block.chunk_begin = first / attention_chunk;
            block.chunk_end = std::max(block.chunk_begin, (end + attention_chunk - 1) / attention_chunk);
            use(block);
        }
    }
}

struct Cut {
    std::int64_t chunks_a_part;
    std::size_t parts;
    std::size_t split_blocks;  // blocks of several parts
    std::size_t partial_rows;  // rows times chunks of those
};

Cut cut_into(const AttentionJob& job, std::int64_t chunks_a_part) {
    Cut cut{chunks_a_part, 0, 0, 0};
    const std::size_t heads = static_cast<std::size_t>(job.shape->kv_heads);
    each_block(job, [&](const Block& block) {
        const std::int64_t chunks = block.chunk_end - block.chunk_begin;
        const std::int64_t parts = std::max<std::int64_t>(1, (chunks + chunks_a_part - 1) / chunks_a_part);
        cut.parts += heads * static_cast<std::size_t>(parts);
        if (parts == 1) return;
        cut.split_blocks += heads;
        cut.partial_rows += heads * static_cast<std::size_t>((block.row_end - block.row_begin) * job.group * chunks);
    });
    return cut;
}

Cut choose_cut(const AttentionJob& job, bool threads) {
    std::int64_t chunks = 0;
    each_block(job, [&](const Block& block) { chunks += block.chunk_end - block.chunk_begin; });
    chunks *= job.shape->kv_heads;
    if (!threads) return cut_into(job, std::max<std::int64_t>(1, chunks));
    Cut cut = cut_into(job, std::max<std::int64_t>(1, (chunks + wanted_parts - 1) / wanted_parts));
    while (cut.partial_rows * static_cast<std::size_t>(job.shape->head_size + 2) > most_partial_floats) {
        cut = cut_into(job, cut.chunks_a_part * 2);
    }
    return cut;
}

AttentionMemory memory_layout(const AttentionJob& job, const AttentionKernels& kernels) {
    const std::size_t rows =
        static_cast<std::size_t>(std::min(std::max(job.group, attention_block_rows), job.group * job.call->width));
    const std::size_t size = static_cast<std::size_t>(job.shape->head_size), number = sizeof(float);
    const std::size_t width = job.tree ? static_cast<std::size_t>(job.tree_stride) : 0;
    AttentionMemory layout;
    layout.tile = rounded(kernels.tile_bytes(*job.shape));
    layout.scores = rounded(rows * attention_chunk * number);
    layout.tree_scores = rounded(rows * width * number);
    layout.chunk_out = rounded(rows * size * number);
    layout.out = rounded(rows * size * number);
    layout.vectors = 4 * rounded(rows * number);
    layout.scales = rounded((2 * attention_chunk + 2 * width) * number);
    return layout;
}

std::size_t slot_bytes(const AttentionMemory& layout) {
    return layout.tile + layout.scores + layout.tree_scores + layout.chunk_out + layout.out + layout.vectors +
           layout.scales;
}

int slots_for(std::size_t parts, bool threads) {
    static const int threads_at_most = std::max(16, 2 * static_cast<int>(std::thread::hardware_concurrency()));
    if (!threads) return 1;
    return static_cast<int>(std::min<std::size_t>(parts, static_cast<std::size_t>(threads_at_most)));
}

struct SpanPieces {
    RowSpan* spans;
    std::int32_t* lengths;
    std::int32_t* order;
    std::int32_t* depths;
    WindowKey* keys;

    SpanPieces(Pieces& pieces, const AttentionCall& call, bool tree) {
        const std::size_t batch = static_cast<std::size_t>(call.batch), width = static_cast<std::size_t>(call.width);
        spans = pieces.take<RowSpan>(batch * width);
        lengths = pieces.take<std::int32_t>(batch);
        order = pieces.take<std::int32_t>(tree ? width : 0);
        depths = pieces.take<std::int32_t>(tree ? width : 0);
        keys = pieces.take<WindowKey>(tree ? batch * width * width : 0);
    }
};

struct WorkPieces {
    std::uint8_t* queries;
    float* query_scales;
    AttentionPart* parts;
    std::atomic<std::int32_t>* open;
    float *partial_out, *partial_maximum, *partial_sum;
    AttentionSlot* slots;
    std::uint8_t* slot_memory;

    WorkPieces(Pieces& pieces, const AttentionJob& job, const Cut& cut, int slot_count, std::size_t one_slot) {
        const std::size_t rows = static_cast<std::size_t>(job.call->batch) * static_cast<std::size_t>(job.call->width) *
                                 static_cast<std::size_t>(job.shape->heads);
        queries = pieces.take<std::uint8_t>(rows * job.query_bytes);
        query_scales = pieces.take<float>(rows);
        parts = pieces.take<AttentionPart>(cut.parts);
        open = pieces.take<std::atomic<std::int32_t>>(cut.split_blocks);
        partial_out = pieces.take<float>(cut.partial_rows * static_cast<std::size_t>(job.shape->head_size));
        partial_maximum = pieces.take<float>(cut.partial_rows);
        partial_sum = pieces.take<float>(cut.partial_rows);
        slots = pieces.take<AttentionSlot>(static_cast<std::size_t>(slot_count));
        slot_memory = pieces.take<std::uint8_t>(one_slot * static_cast<std::size_t>(slot_count));
    }
};

void fill_spans(const AttentionShape& shape, const AttentionCall& call, const SpanPieces& pieces) {
    for (int b = 0; b < call.batch; ++b) {
        const std::size_t offset = static_cast<std::size_t>(b) * static_cast<std::size_t>(call.width);
        pieces.lengths[b] = length_of(call, b);
        if (is_chain(shape, call, b)) {
            fill_chain(shape, call, b, pieces.spans + offset);
        } else {
            fill_tree(shape, call, b, pieces.spans + offset, pieces.order, pieces.depths,
                      pieces.keys + offset * static_cast<std::size_t>(call.width));
        }
    }
}

void fill_parts(const AttentionJob& job, const Cut& cut, WorkPieces work) {
    const std::size_t size = static_cast<std::size_t>(job.shape->head_size);
    each_block(job, [&](const Block& block) {
        const std::int64_t chunks = block.chunk_end - block.chunk_begin, each = cut.chunks_a_part;
        const std::int64_t parts = std::max<std::int64_t>(1, (chunks + each - 1) / each);
        for (int head = 0; head < job.shape->kv_heads; ++head) {
            AttentionPart part{block.batch,     head,    block.row_begin, block.row_end, 0,      0, block.chunk_begin,
                               block.chunk_end, nullptr, nullptr,         nullptr,       nullptr};
            if (parts > 1) {
                part.open = new (work.open++) std::atomic<std::int32_t>(static_cast<std::int32_t>(parts));
                const std::size_t rows =
                    static_cast<std::size_t>((block.row_end - block.row_begin) * job.group * chunks);
                part.partial_out = work.partial_out, work.partial_out += rows * size;
                part.partial_maximum = work.partial_maximum, work.partial_maximum += rows;
                part.partial_sum = work.partial_sum, work.partial_sum += rows;
            }
            for (std::int64_t k = 0; k < parts; ++k) {
                part.chunk_begin = block.chunk_begin + chunks * k / parts;
                part.chunk_end = block.chunk_begin + chunks * (k + 1) / parts;
                new (work.parts++) AttentionPart(part);
            }
        }
    });
}

}  // namespace

float default_scale(int head_size) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_size))); }

void plan_attention(AttentionPlan& plan, const AttentionKernels& kernels, const AttentionShape& shape,
                    const AttentionCall& call, Scratch& scratch, bool threads) {
    AttentionJob& job = plan.job;
    job.shape = &shape;
    job.call = &call;
    job.group = shape.heads / shape.kv_heads;
    job.tree_stride = (call.width + 31) / 32 * 32;
    job.row_bytes = cache_row_bytes(shape);
    const std::size_t size = static_cast<std::size_t>(shape.head_size);
    job.query_bytes = size * (shape.cache == CacheType::int8 ? sizeof(std::int16_t) : sizeof(float));
    job.tree = false;
    for (int b = 0; b < call.batch && !job.tree; ++b) job.tree = !is_chain(shape, call, b);

    // How much memory the work needs follows from what the rows see. Where the scratch grows for it, what was written
    // is lost and written again.
    Pieces counted(nullptr);
    SpanPieces(counted, call, job.tree);
    std::size_t needed = counted.used(), one_slot = 0;
    Cut cut;
    do {
        Pieces taken(scratch.reserve(needed));
        const SpanPieces spans(taken, call, job.tree);
        fill_spans(shape, call, spans);
        job.spans = spans.spans;
        job.lengths = spans.lengths;
        cut = choose_cut(job, threads);
        plan.slot_count = slots_for(cut.parts, threads);
        job.memory = memory_layout(job, kernels);
        one_slot = slot_bytes(job.memory);
        Pieces all(nullptr);
        SpanPieces(all, call, job.tree);
        WorkPieces(all, job, cut, plan.slot_count, one_slot);
        needed = all.used();
    } while (needed > scratch.size());

    plan.part_count = cut.parts;
    Pieces taken(scratch.reserve(needed));
    SpanPieces(taken, call, job.tree);
    const WorkPieces work(taken, job, cut, plan.slot_count, one_slot);
    job.queries = work.queries;
    job.query_scales = work.query_scales;
    job.parts = work.parts;
    plan.slots = work.slots;
    for (int k = 0; k < plan.slot_count; ++k) {
        new (work.slots + k) AttentionSlot{{false}, work.slot_memory + static_cast<std::size_t>(k) * one_slot};
    }
    fill_parts(job, cut, work);
}

}  // namespace specruntime
