// Before attention: one window row's rotary embedding, its key and value into the cache, its queries kept.
#pragma once
#include "cache.h"

namespace specruntime {
namespace SPECRUNTIME_ISA {

// Turn the leading dims of one head. `cos` and `sin` hold half as many numbers as dims turn.
inline void rotate(const float* from, float* to, const AttentionShape& shape, const float* cos, const float* sin) {
    const int half = shape.rotary_dims / 2;
    if (shape.rotary_interleaved) {
        for (int k = 0; k < half; ++k) {
            const float x = from[2 * k], y = from[2 * k + 1];
            to[2 * k] = x * cos[k] - y * sin[k];
            to[2 * k + 1] = y * cos[k] + x * sin[k];
        }
    } else {
        int k = 0;
        for (; k + 8 <= half; k += 8) {
            const auto x = Lanes8::load(from + k), y = Lanes8::load(from + half + k);
            const auto c = Lanes8::load(cos + k), s = Lanes8::load(sin + k);
            Lanes8::store(to + k, Lanes8::sub(Lanes8::mul(x, c), Lanes8::mul(y, s)));
            Lanes8::store(to + half + k, Lanes8::add(Lanes8::mul(y, c), Lanes8::mul(x, s)));
        }
        for (; k < half; ++k) {
            const float x = from[k], y = from[half + k];
            to[k] = x * cos[k] - y * sin[k];
            to[half + k] = y * cos[k] + x * sin[k];
        }
    }
    for (int d = shape.rotary_dims; d < shape.head_size; ++d) to[d] = from[d];
}

template <class Cache>
inline void prepare_row(const AttentionJob& job, std::size_t row) {
    const AttentionShape& shape = *job.shape;
    const AttentionCall& call = *job.call;
    const std::size_t width = static_cast<std::size_t>(call.width), size = static_cast<std::size_t>(shape.head_size);
    const std::size_t heads = static_cast<std::size_t>(shape.heads), group = static_cast<std::size_t>(job.group);
    const std::size_t kv_heads = static_cast<std::size_t>(shape.kv_heads);
    const std::size_t b = row / width, i = row % width;
    if (static_cast<std::int64_t>(i) >= job.lengths[b]) {
        std::memset(call.out + row * heads * size, 0, heads * size * sizeof(float));
        return;
    }
    const std::int64_t place = call.cache_length[b] + static_cast<std::int64_t>(i);
    const std::int64_t position = call.position_ids != nullptr ? call.position_ids[row] : place;
    const std::size_t half = static_cast<std::size_t>(shape.rotary_dims / 2);
    const float* cos = half > 0 ? call.cos + static_cast<std::size_t>(position) * half : nullptr;
    const float* sin = half > 0 ? call.sin + static_cast<std::size_t>(position) * half : nullptr;
    alignas(64) float turned[512];

    for (std::size_t h = 0; h < heads; ++h) {
        rotate(call.query + row * call.query_stride + h * size, turned, shape, cos, sin);
        const auto scale = Lanes8::all(shape.scale);
        for (std::size_t d = 0; d < size; d += 8) {
            Lanes8::store(turned + d, Lanes8::mul(Lanes8::load(turned + d), scale));
        }
        const std::size_t kept = ((b * kv_heads + h / group) * width + i) * group + h % group;
        job.query_scales[kept] = Cache::keep_query(turned, shape.head_size, job.queries + kept * job.query_bytes);
    }
    for (std::size_t h = 0; h < kv_heads; ++h) {
        const std::size_t offset =
            ((b * kv_heads + h) * static_cast<std::size_t>(call.capacity) + static_cast<std::size_t>(place)) *
            job.row_bytes;
        rotate(call.key + row * call.key_stride + h * size, turned, shape, cos, sin);
        Cache::write(turned, shape.head_size, static_cast<std::uint8_t*>(call.key_cache) + offset);
        Cache::write(call.value + row * call.value_stride + h * size, shape.head_size,
                     static_cast<std::uint8_t*>(call.value_cache) + offset);
    }
}

}  // namespace SPECRUNTIME_ISA
}  // namespace specruntime
