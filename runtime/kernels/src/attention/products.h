// The two products of attention, for a few rows at once: queries by keys, and weights by values.
#pragma once
#include "cache.h"

namespace specruntime {
namespace SPECRUNTIME_ISA {

inline int smaller_of(int a, int b) { return b < a ? b : a; }
inline int larger_of(int a, int b) { return a < b ? b : a; }

constexpr int most_rows = 6;     // of one product in registers
constexpr int tile_vectors = 2;  // of keys in a tile

// Scores of `rows` queries with `vectors` vectors of keys. Every key has a lane of its own, in which head dims are
// summed in order: a score depends on its query and key only.
template <class V, class Cache, int rows, int vectors>
inline void score_rows(const typename Cache::Number* queries, const float* query_scales,
                       const typename Cache::Number* tile, int units, const float* key_scales, float* scores,
                       std::size_t stride) {
    typename Cache::Sums sums[rows][vectors];
    for (int r = 0; r < rows; ++r) {
        for (int v = 0; v < vectors; ++v) sums[r][v] = Cache::zero();
    }
    for (int u = 0; u < units; ++u) {
        typename Cache::Sums keys[vectors];
        for (int v = 0; v < vectors; ++v) keys[v] = Cache::tile_load(tile + (u * tile_vectors + v) * V::size);
        for (int r = 0; r < rows; ++r) {
            const auto query = Cache::query(queries + r * units + u);
            for (int v = 0; v < vectors; ++v) sums[r][v] = Cache::multiply(sums[r][v], query, keys[v]);
        }
    }
    for (int r = 0; r < rows; ++r) {
        for (int v = 0; v < vectors; ++v) {
            const auto score = Cache::score(sums[r][v], key_scales + v * V::size, query_scales[r]);
            V::store(scores + r * stride + v * V::size, score);
        }
    }
}

template <class V, class Cache, int vectors>
inline void score_some(int rows, const typename Cache::Number* queries, const float* query_scales,
                       const typename Cache::Number* tile, int units, const float* key_scales, float* scores,
                       std::size_t stride) {
    static_assert(most_rows == 6, "one case a number of rows");
    switch (rows) {
        case 1:
            return score_rows<V, Cache, 1, vectors>(queries, query_scales, tile, units, key_scales, scores, stride);
        case 2:
            return score_rows<V, Cache, 2, vectors>(queries, query_scales, tile, units, key_scales, scores, stride);
        case 3:
            return score_rows<V, Cache, 3, vectors>(queries, query_scales, tile, units, key_scales, scores, stride);
        case 4:
            return score_rows<V, Cache, 4, vectors>(queries, query_scales, tile, units, key_scales, scores, stride);
        case 5:
            return score_rows<V, Cache, 5, vectors>(queries, query_scales, tile, units, key_scales, scores, stride);
        case 6:
            return score_rows<V, Cache, 6, vectors>(queries, query_scales, tile, units, key_scales, scores, stride);
        default:
            return;
    }
}

// Rows in equal helpings of at most `most_rows`: use(first, count).
template <class Use>
inline void each_helping(int rows, const Use& use) {
    const int helpings = (rows + most_rows - 1) / most_rows;
    for (int k = 0; k < helpings; ++k) {
        const int first = rows * k / helpings;
        use(first, rows * (k + 1) / helpings - first);
    }
}

// The queries of a block of rows.
template <class Cache>
struct Queries {
    const typename Cache::Number* rows;
    const float* scales;
    int count;
    int size;  // of a head
};

constexpr int keys_ahead = 32;  // that are asked for while a tile is worked on

// Rows of a cache, of one key head.
struct CacheRows {
    const std::uint8_t* rows;
    std::size_t row_bytes;
    const std::uint8_t* row(std::int64_t key) const { return rows + static_cast<std::size_t>(key) * row_bytes; }
};

// Scores of all rows with keys `first` to `last` (cache rows; not more than stride) into scores[row * stride + k].
// Lanes behind the last key get scores of that key again. `key_scales` keeps the keys' scales, where they have any.
// Asks for the values of these keys and for the keys that follow, as memory is slower than the products.
template <class V, class Cache>
inline void score_keys(const Queries<Cache>& queries, const CacheRows& keys, const CacheRows& values,
                       std::int64_t first, std::int64_t last, typename Cache::Number* tile, float* key_scales,
                       float* scores, std::size_t stride) {
    constexpr int tile_keys = tile_vectors * V::size;
    const int count = static_cast<int>(last - first), units = Cache::units(queries.size);
    for (std::size_t line = 0; line < keys_ahead * values.row_bytes; line += 64) {
        prefetch_far(values.row(first) + line);
    }
    for (int k = 0; k < count; k += tile_keys) {
        const int vectors = count - k > V::size ? 2 : 1;
        const std::size_t bytes = static_cast<std::size_t>(vectors * V::size) * keys.row_bytes;
        for (std::size_t line = 0; line < bytes; line += 64) {
            prefetch_near(keys.row(first + k + keys_ahead) + line);
            prefetch_far(values.row(first + k + keys_ahead) + line);
        }
        for (int eight = 0; eight < vectors * V::size; eight += 8) {
            const std::uint8_t* rows[8];
            for (int r = 0; r < 8; ++r) {
                rows[r] = keys.row(first + smaller_of(k + eight + r, count - 1));
                Cache::read_scale(rows[r], queries.size, key_scales + k + eight + r);
            }
            Cache::transpose(rows, queries.size, tile + eight, tile_keys);
        }
        each_helping(queries.count, [&](int row, int helping) {
            const auto* some = queries.rows + row * units;
            const float* scales = queries.scales + row;
            float* to = scores + row * stride + k;
            if (vectors == 2) {
                score_some<V, Cache, 2>(helping, some, scales, tile, units, key_scales + k, to, stride);
            } else {
                score_some<V, Cache, 1>(helping, some, scales, tile, units, key_scales + k, to, stride);
            }
        });
    }
}

// Keys that lie one behind the other: the weight of key k is weights[k].
struct KeySpan {
    CacheRows values;           // of key 0
    const std::uint8_t* ahead;  // what memory is asked for meanwhile, a row's bytes a key; null: nothing
    const std::uint8_t* value(int k) const { return values.row(k); }
    int weight(int k) const { return k; }
    void ask_ahead(int k) const {
        if (ahead == nullptr) return;
        const std::uint8_t* from = ahead + static_cast<std::size_t>(k) * values.row_bytes;
        for (std::size_t line = 0; line < values.row_bytes; line += 64) prefetch_far(from + line);
    }
};

// Keys of a window at any of its rows.
struct KeyList {
    CacheRows values;  // of window row 0
    const WindowKey* keys;
    int offset;  // place of slot 0 among the weights
    const std::uint8_t* value(int k) const { return values.row(keys[k].node); }
    int weight(int k) const { return keys[k].slot + offset; }
    void ask_ahead(int) const {}
};

// out[row][d] += sum over keys begin..end, in order, of weight * value, for `vectors` vectors of dims from d on.
template <class V, class Cache, int rows, int vectors, class Keys>
inline void weigh_dims(const Keys& keys, int begin, int end, const float* weights, float* out, std::size_t out_stride,
                       int d) {
    typename V::Float sums[rows][vectors];
    for (int r = 0; r < rows; ++r) {
        for (int v = 0; v < vectors; ++v) sums[r][v] = V::load(out + r * out_stride + d + v * V::size);
    }
    for (int k = begin; k < end; ++k) {
        const std::uint8_t* row = keys.value(k);
        const float* weight = weights + keys.weight(k);
        if (d == 0) keys.ask_ahead(k);
        typename V::Float values[vectors];
        for (int v = 0; v < vectors; ++v) values[v] = Cache::value(row, d + v * V::size);
        for (int r = 0; r < rows; ++r) {
            const auto factor = V::all(weight[r * attention_chunk]);
            for (int v = 0; v < vectors; ++v) sums[r][v] = V::fma(factor, values[v], sums[r][v]);
        }
    }
    for (int r = 0; r < rows; ++r) {
        for (int v = 0; v < vectors; ++v) V::store(out + r * out_stride + d + v * V::size, sums[r][v]);
    }
}

// As many vectors of dims at once as leave room in registers; what remains in halves of that.
template <class V, template <class> class Cache, int rows, int vectors, class Keys>
inline void weigh_all_dims(const Keys& keys, int begin, int end, const float* weights, float* out, int size, int d) {
    for (; d + vectors * V::size <= size; d += vectors * V::size) {
        weigh_dims<V, Cache<V>, rows, vectors>(keys, begin, end, weights, out, static_cast<std::size_t>(size), d);
    }
    if (d >= size) return;
    if constexpr (vectors > 1) {
        weigh_all_dims<V, Cache, rows, vectors / 2>(keys, begin, end, weights, out, size, d);
    } else if constexpr (V::size > 8) {
        weigh_all_dims<Lanes8, Cache, rows, 1>(keys, begin, end, weights, out, size, d);
    }
}

template <class V, template <class> class Cache, class Keys>
inline void weigh_some(int rows, const Keys& keys, int begin, int end, const float* weights, float* out, int size) {
    if (begin >= end) return;
    switch (rows) {
        case 1:
            return weigh_all_dims<V, Cache, 1, 8>(keys, begin, end, weights, out, size, 0);
        case 2:
            return weigh_all_dims<V, Cache, 2, 4>(keys, begin, end, weights, out, size, 0);
        case 3:
            return weigh_all_dims<V, Cache, 3, 4>(keys, begin, end, weights, out, size, 0);
        case 4:
            return weigh_all_dims<V, Cache, 4, V::size / 4>(keys, begin, end, weights, out, size, 0);
        case 5:
            return weigh_all_dims<V, Cache, 5, V::size / 4>(keys, begin, end, weights, out, size, 0);
        case 6:
            return weigh_all_dims<V, Cache, 6, V::size / 4>(keys, begin, end, weights, out, size, 0);
        default:
            return;
    }
}

}  // namespace SPECRUNTIME_ISA
}  // namespace specruntime
