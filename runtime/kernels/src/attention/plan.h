// How one call is cut into parts, and where its working memory lies. No result depends on it.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "kernels.h"

namespace specruntime {

// Working memory of a part. Any that is free will do.
struct AttentionSlot {
    std::atomic<bool> taken;
    std::uint8_t* memory;
};

struct AttentionPlan {
    AttentionJob job;
    std::size_t part_count = 0;
    AttentionSlot* slots = nullptr;
    int slot_count = 0;
};

// 1 / sqrt(head_size)
float default_scale(int head_size);

// Fill `plan` with pointers into `scratch`. `shape` and `call` must outlive it. `threads`: parts may run side by side.
void plan_attention(AttentionPlan& plan, const AttentionKernels& kernels, const AttentionShape& shape,
                    const AttentionCall& call, Scratch& scratch, bool threads);

}  // namespace specruntime
