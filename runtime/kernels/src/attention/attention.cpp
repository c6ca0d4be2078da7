// Checks of shapes and calls, and the order of work of one call.
#include "attention.h"

#include <algorithm>
#include <thread>

#include "kernels.h"
#include "plan.h"

namespace specruntime {

void set_packed(AttentionCall& call, const AttentionShape& shape, const float* packed) {
    const std::size_t size = static_cast<std::size_t>(shape.head_size);
    const std::size_t query = size * static_cast<std::size_t>(shape.heads);
    const std::size_t keys = size * static_cast<std::size_t>(shape.kv_heads);
    call.query = packed;
    call.key = packed + query;
    call.value = packed + query + keys;
    call.query_stride = call.key_stride = call.value_stride = query + 2 * keys;
}

std::size_t cache_row_bytes(const AttentionShape& shape) {
    const std::size_t size = static_cast<std::size_t>(shape.head_size);
    return shape.cache == CacheType::int8 ? size + sizeof(float) : size * sizeof(float);
}

const char* refuse_shape(const AttentionShape& shape) {
    if (shape.kv_heads < 1 || shape.heads < shape.kv_heads || shape.heads % shape.kv_heads != 0) {
        return "the number of query heads is no multiple of the number of key heads";
    }
    if (shape.heads / shape.kv_heads > attention_block_rows) return "more than 64 query heads share a key head";
    if (shape.head_size < 8 || shape.head_size % 8 != 0 || shape.head_size > 512) {
        return "the head size is no multiple of 8 up to 512";
    }
    if (shape.rotary_dims < 0 || shape.rotary_dims > shape.head_size || shape.rotary_dims % 2 != 0) {
        return "the rotary dimensions are odd or more than the head size";
    }
    if (shape.local_window != -1 && shape.local_window < 1) return "the local window is neither -1 nor 1 or more";
    if (!(shape.softcap >= 0)) return "the soft-cap is negative";
    return nullptr;
}

const char* refuse_call(const AttentionShape& shape, const AttentionCall& call) {
    if (call.batch < 0 || call.width < 0) return "batch or width is negative";
    if (call.batch == 0 || call.width == 0) return nullptr;
    if (call.query == nullptr || call.key == nullptr || call.value == nullptr || call.out == nullptr ||
        call.key_cache == nullptr || call.value_cache == nullptr || call.cache_length == nullptr) {
        return "an input or output is missing";
    }
    if (shape.rotary_dims > 0 && (call.cos == nullptr || call.sin == nullptr)) return "cos or sin is missing";
    for (int b = 0; b < call.batch; ++b) {
        const std::int64_t committed = call.cache_length[b];
        const std::int64_t rows = call.query_lengths != nullptr ? call.query_lengths[b] : call.width;
        if (rows < 0 || rows > call.width) return "query_lengths holds a number outside 0..width";
        if (committed < 0 || committed > call.capacity - rows) return "the window's rows do not fit into the cache";
        if (shape.rotary_dims == 0) continue;
        if (call.position_ids == nullptr && rows > 0 && committed + rows > call.rotary_positions) {
            return "a position lies beyond the tables cos and sin";
        }
        for (std::int64_t i = 0; call.position_ids != nullptr && i < rows; ++i) {
            const std::int64_t position = call.position_ids[static_cast<std::int64_t>(b) * call.width + i];
            if (position < 0 || position >= call.rotary_positions) {
                return "position_ids holds a number outside the tables cos and sin";
            }
        }
    }
    return nullptr;
}

namespace {

struct Run {
    const AttentionKernels* kernels;
    AttentionPlan plan;
    std::size_t rows;     // batch * width
    std::size_t portion;  // rows of a part of the preparation
};

void prepare_portion(void* job, std::size_t i) {
    const Run& run = *static_cast<const Run*>(job);
    const std::size_t end = std::min(run.rows, (i + 1) * run.portion);
    for (std::size_t row = i * run.portion; row < end; ++row) run.kernels->prepare(run.plan.job, row);
}

// A slot that no other thread works in. There are as many as threads, so the first round finds one.
AttentionSlot& take_slot(const AttentionPlan& plan) {
    for (;;) {
        for (int k = 0; k < plan.slot_count; ++k) {
            if (!plan.slots[k].taken.exchange(true, std::memory_order_acquire)) return plan.slots[k];
        }
        std::this_thread::yield();
    }
}

// Whoever does the last part of a block merges it.
void attend_part(void* job, std::size_t i) {
    const Run& run = *static_cast<const Run*>(job);
    const AttentionPart& part = run.plan.job.parts[i];
    AttentionSlot& slot = take_slot(run.plan);
    run.kernels->attend(run.plan.job, part, slot.memory);
    if (part.open != nullptr && part.open->fetch_sub(1, std::memory_order_acq_rel) == 1) {
        run.kernels->merge(run.plan.job, part, slot.memory);
    }
    slot.taken.store(false, std::memory_order_release);
}

}  // namespace

void window_attention(const AttentionKernels& kernels, const AttentionShape& shape, const AttentionCall& call,
                      Scratch& scratch, Pool pool) {
    if (call.batch == 0 || call.width == 0) return;
    AttentionShape filled = shape;
    if (filled.scale == 0) filled.scale = default_scale(shape.head_size);
    // Rows of a step are fewer than a dispatch is worth; a prefill has many.
    constexpr std::size_t portion = 16;
    Run run{&kernels, {}, static_cast<std::size_t>(call.batch) * static_cast<std::size_t>(call.width), portion};
    plan_attention(run.plan, kernels, filled, call, scratch, pool.parallel != nullptr);
    const std::size_t portions = (run.rows + portion - 1) / portion;
    if (portions > 2) {
        pool.run(portions, prepare_portion, &run);
    } else {
        for (std::size_t i = 0; i < portions; ++i) prepare_portion(&run, i);
    }
    pool.run(run.plan.part_count, attend_part, &run);
}

}  // namespace specruntime
