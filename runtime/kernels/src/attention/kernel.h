// Attention of one part (kernels.h) over the vectors of one instruction set. A file in src/isa includes the lanes
// (simd/lanes_*.h), then this, and puts attention_kernels<Lanes> into its table.
#pragma once
#include "products.h"
#include "rows.h"
#include "softmax.h"

namespace specruntime {
namespace SPECRUNTIME_ISA {

inline std::int64_t smaller_position(std::int64_t a, std::int64_t b) { return b < a ? b : a; }
inline std::int64_t larger_position(std::int64_t a, std::int64_t b) { return a < b ? b : a; }

template <class V, template <class> class CacheOf>
class Attention {
public:
    Attention(const AttentionJob& job, const AttentionPart& part, std::uint8_t* memory)
        : job_(job), part_(part), shape_(*job.shape), call_(*job.call), size_(job.shape->head_size) {
        const std::size_t width = static_cast<std::size_t>(call_.width), b = static_cast<std::size_t>(part.batch);
        const std::size_t head = b * static_cast<std::size_t>(shape_.kv_heads) + static_cast<std::size_t>(part.kv_head);
        rows_ = (part.row_end - part.row_begin) * job.group;
        committed_ = call_.cache_length[b];
        spans_ = job.spans + b * width + part.row_begin;
        tree_ = spans_[0].keys != nullptr;
        const std::size_t cache = head * static_cast<std::size_t>(call_.capacity) * job.row_bytes;
        keys_ = {static_cast<const std::uint8_t*>(call_.key_cache) + cache, job.row_bytes};
        values_ = {static_cast<const std::uint8_t*>(call_.value_cache) + cache, job.row_bytes};
        const std::size_t query =
            (head * width + static_cast<std::size_t>(part.row_begin)) * static_cast<std::size_t>(job.group);
        queries_ = {reinterpret_cast<const Number*>(job.queries + query * job.query_bytes), job.query_scales + query,
                    rows_, size_};
        share_out(memory);
    }

    // All chunks of the part: merged at once where it is the whole block, else kept for merge().
    void attend() {
        const bool whole = part_.open == nullptr;
        if (whole) clear();
        if (tree_) score_window();
        for (std::int64_t chunk = part_.chunk_begin; chunk < part_.chunk_end; ++chunk) {
            if (!whole) point_at_partial(chunk);
            attend_chunk(chunk * attention_chunk);
            if (whole) merge_rows();
        }
        if (whole) finish();
    }

    // All chunks of the block, in order, once every part is done.
    void merge() {
        clear();
        for (std::int64_t chunk = part_.block_begin; chunk < part_.block_end; ++chunk) {
            point_at_partial(chunk);
            merge_rows();
        }
        finish();
    }

private:
    using Cache = CacheOf<V>;
    using Number = typename Cache::Number;

    void share_out(std::uint8_t* memory) {
        const AttentionMemory& layout = job_.memory;
        const auto take = [&](std::size_t bytes) {
            std::uint8_t* piece = memory;
            memory += bytes;
            return reinterpret_cast<float*>(piece);
        };
        tile_ = reinterpret_cast<Number*>(take(layout.tile));
        scores_ = take(layout.scores);
        tree_scores_ = take(layout.tree_scores);
        chunk_.out = take(layout.chunk_out);
        merged_.out = take(layout.out);
        chunk_.maximum = take(layout.vectors / 4);
        chunk_.sum = take(layout.vectors / 4);
        merged_.maximum = take(layout.vectors / 4);
        merged_.sum = take(layout.vectors / 4);
        key_scales_ = take(layout.scales);
        value_scales_ = key_scales_ + attention_chunk;
        window_value_scales_ = value_scales_ + attention_chunk;
    }

    const RowSpan& span(int row) const { return spans_[row / job_.group]; }

    static Merged of_row(const Merged& all, int row, int size) {
        return {all.out + row * size, all.maximum + row, all.sum + row};
    }

    void point_at_partial(std::int64_t chunk) {
        const std::size_t row = static_cast<std::size_t>((chunk - part_.block_begin) * rows_);
        chunk_ = {part_.partial_out + row * static_cast<std::size_t>(size_), part_.partial_maximum + row,
                  part_.partial_sum + row};
    }

    void clear() {
        for (int r = 0; r < rows_; ++r) merged_.maximum[r] = nothing_seen, merged_.sum[r] = 0;
        std::memset(merged_.out, 0, static_cast<std::size_t>(rows_ * size_) * sizeof(float));
    }

    void merge_rows() {
        for (int r = 0; r < rows_; ++r) merge_chunk(of_row(merged_, r, size_), of_row(chunk_, r, size_), size_);
    }

    void finish() {
        const std::size_t row_size = static_cast<std::size_t>(shape_.heads * size_);
        for (int r = 0; r < rows_; ++r) {
            const int head = part_.kv_head * job_.group + r % job_.group;
            const std::size_t row = static_cast<std::size_t>(part_.batch) * static_cast<std::size_t>(call_.width) +
                                    static_cast<std::size_t>(part_.row_begin + r / job_.group);
            finish_row(of_row(merged_, r, size_), size_, call_.sinks != nullptr ? call_.sinks + head : nullptr,
                       call_.out + row * row_size + static_cast<std::size_t>(head * size_));
        }
    }

    // Scores of every row with every key of a tree's window. Rows pick theirs, chunk by chunk.
    void score_window() {
        const std::int64_t nodes = job_.lengths[part_.batch];
        if (part_.chunk_end * attention_chunk <= committed_) return;
        for (std::int64_t j = 0; j < nodes; j += attention_chunk) {
            const std::int64_t end = smaller_position(nodes, j + attention_chunk);
            score_keys<V, Cache>(queries_, keys_, values_, committed_ + j, committed_ + end, tile_, key_scales_,
                                 tree_scores_ + j, static_cast<std::size_t>(job_.tree_stride));
        }
        for (int r = 0; r < rows_ && shape_.softcap > 0; ++r) {
            cap_scores<V>(tree_scores_ + r * job_.tree_stride, 0, static_cast<int>(nodes), shape_.softcap);
        }
        for (std::int64_t j = 0; j < nodes; ++j) {
            Cache::read_scale(values_.row(committed_ + j), size_, window_value_scales_ + j);
        }
    }

    // What one row sees of a chunk, as places in it.
    struct Seen {
        int begin;
        int end;        // of all keys
        int lined_end;  // of those that lie one behind the other in the cache
    };

    // The chunk of keys at logical positions `start` to start + 127.
    void attend_chunk(std::int64_t start) {
        std::int64_t first = start + attention_chunk, last = start;
        for (int r = 0; r < rows_; r += job_.group) {
            first = smaller_position(first, larger_position(span(r).first, start));
            last = larger_position(last, smaller_position(span(r).end, start + attention_chunk));
        }
        if (tree_) last = smaller_position(last, committed_);
        const int lined_end = static_cast<int>(larger_position(0, last - start));
        const int lined_begin = smaller_of(static_cast<int>(first - start), lined_end) / V::size * V::size;
        score_lined(start, lined_begin, lined_end);
        if (tree_ && Cache::has_scales) scale_by_one(lined_end);
        Seen seen[attention_block_rows];
        for (int r = 0; r < rows_; ++r) {
            seen[r] = look(span(r), start, lined_end);
            weigh_row(r, span(r), start, seen[r]);
        }
        std::memset(chunk_.out, 0, static_cast<std::size_t>(rows_ * size_) * sizeof(float));
        each_helping(rows_, [&](int row, int helping) { add_lined(start, row, helping, seen + row); });
        if (tree_ && start + attention_chunk > committed_) add_listed(start);
    }

    Seen look(const RowSpan& row, std::int64_t start, int lined_end) const {
        // In a tree, keys of the window outside the row's local window are left out one by one.
        const std::int64_t first = tree_ ? smaller_position(row.first, committed_) : row.first;
        const std::int64_t begin = larger_position(first, start) - start;
        const std::int64_t end = smaller_position(row.end, start + attention_chunk) - start;
        if (begin >= end) return {0, 0, 0};
        return {static_cast<int>(begin), static_cast<int>(end), smaller_of(static_cast<int>(end), lined_end)};
    }

    void score_lined(std::int64_t start, int begin, int end) {
        if (begin >= end) return;
        score_keys<V, Cache>(queries_, keys_, values_, start + begin, start + end, tile_, key_scales_, scores_ + begin,
                             attention_chunk);
        for (int k = begin; k < end; ++k) Cache::read_scale(values_.row(start + k), size_, value_scales_ + k);
    }

    // Keys of a tree's window have scales of their own, which follow.
    void scale_by_one(int begin) {
        for (int k = begin; k < attention_chunk; ++k) value_scales_[k] = 1;
    }

    // Scores of a row to weights, each with the scale of its value.
    void weigh_row(int r, const RowSpan& row, std::int64_t start, const Seen& seen) {
        float* scores = scores_ + r * attention_chunk;
        if (shape_.softcap > 0) cap_scores<V>(scores, seen.begin, seen.lined_end, shape_.softcap);
        if (seen.end > seen.lined_end) {
            const int from = larger_of(seen.begin, seen.lined_end);
            for (int k = from; k < seen.end; ++k) scores[k] = nothing_seen;
            each_key(row, start,
                     [&](int place, int node) { scores[place] = tree_scores_[r * job_.tree_stride + node]; });
        }
        if (seen.begin == seen.end) {
            chunk_.maximum[r] = nothing_seen, chunk_.sum[r] = 0;
            return;
        }
        weigh_scores<V, Cache::has_scales>(scores, seen.begin, seen.end, value_scales_, chunk_.maximum + r,
                                           chunk_.sum + r);
        if (!Cache::has_scales || seen.end == seen.lined_end) return;
        each_key(row, start, [&](int place, int node) { scores[place] *= window_value_scales_[node]; });
    }

    // use(place in the chunk, window row) for the keys of a tree's window in this chunk.
    template <class Use>
    void each_key(const RowSpan& row, std::int64_t start, const Use& use) const {
        for (int k = 0; k < row.key_count; ++k) {
            const std::int64_t place = committed_ + row.keys[k].slot - start;
            if (place >= 0 && place < attention_chunk) use(static_cast<int>(place), row.keys[k].node);
        }
    }

    // Values that lie one behind the other: what all rows of the helping see in one product, the rest row by row.
    void add_lined(std::int64_t start, int row, int helping, const Seen* seen) {
        int begin = 0, end = attention_chunk;
        for (int r = 0; r < helping; ++r) {
            begin = larger_of(begin, seen[r].begin);
            end = smaller_of(end, seen[r].lined_end);
        }
        // The first product of a chunk fetches the keys of the next.
        const bool fetch = row == 0 && start + attention_chunk < part_.chunk_end * attention_chunk;
        const CacheRows values{values_.row(start), job_.row_bytes};
        const KeySpan keys{values, nullptr}, fetching{values, fetch ? keys_.row(start + attention_chunk) : nullptr};
        const float* weights = scores_ + row * attention_chunk;
        float* out = chunk_.out + row * size_;
        if (begin >= end) begin = end = attention_chunk;
        for (int r = 0; r < helping; ++r) {
            weigh_some<V, CacheOf>(1, keys, seen[r].begin, smaller_of(begin, seen[r].lined_end),
                                   weights + r * attention_chunk, out + r * size_, size_);
        }
        weigh_some<V, CacheOf>(helping, fetching, begin, end, weights, out, size_);
        for (int r = 0; r < helping; ++r) {
            weigh_some<V, CacheOf>(1, keys, larger_of(end, seen[r].begin), seen[r].lined_end,
                                   weights + r * attention_chunk, out + r * size_, size_);
        }
    }

    // Values of a tree's window: query heads of one window row share a list.
    void add_listed(std::int64_t start) {
        for (int r = 0; r < rows_; r += job_.group) {
            const RowSpan& row = span(r);
            const int offset = static_cast<int>(committed_ - start);  // fits: the window is at most a few chunks away
            int begin = 0, end = row.key_count;
            while (begin < end && row.keys[begin].slot + offset < 0) ++begin;
            while (end > begin && row.keys[end - 1].slot + offset >= attention_chunk) --end;
            const KeyList keys{{values_.row(committed_), job_.row_bytes}, row.keys, offset};
            each_helping(job_.group, [&](int first, int helping) {
                weigh_some<V, CacheOf>(helping, keys, begin, end, scores_ + (r + first) * attention_chunk,
                                       chunk_.out + (r + first) * size_, size_);
            });
        }
    }

    const AttentionJob& job_;
    const AttentionPart& part_;
    const AttentionShape& shape_;
    const AttentionCall& call_;
    const int size_;
    int rows_;
    bool tree_;
    std::int64_t committed_;
    const RowSpan* spans_;
    CacheRows keys_, values_;
    Queries<Cache> queries_;
    Number* tile_;
    float *scores_, *tree_scores_, *key_scales_, *value_scales_, *window_value_scales_;
    Merged chunk_, merged_;
};

template <class V>
struct AttentionEntry {
    static void prepare(const AttentionJob& job, std::size_t row) {
        if (job.shape->cache == CacheType::int8) {
            prepare_row<Int8Cache<Lanes8>>(job, row);
        } else {
            prepare_row<Fp32Cache<Lanes8>>(job, row);
        }
    }
    static void attend(const AttentionJob& job, const AttentionPart& part, std::uint8_t* memory) {
        if (job.shape->cache == CacheType::int8) {
            Attention<V, Int8Cache>(job, part, memory).attend();
        } else {
            Attention<V, Fp32Cache>(job, part, memory).attend();
        }
    }
    static void merge(const AttentionJob& job, const AttentionPart& part, std::uint8_t* memory) {
        if (job.shape->cache == CacheType::int8) {
            Attention<V, Int8Cache>(job, part, memory).merge();
        } else {
            Attention<V, Fp32Cache>(job, part, memory).merge();
        }
    }
    static std::size_t tile_bytes(const AttentionShape& shape) {
        return static_cast<std::size_t>(shape.head_size) * tile_vectors * V::size * sizeof(float);
    }
};

template <class V>
constexpr AttentionKernels attention_kernels = {AttentionEntry<V>::prepare, AttentionEntry<V>::attend,
                                                AttentionEntry<V>::merge, AttentionEntry<V>::tile_bytes};

}  // namespace SPECRUNTIME_ISA
}  // namespace specruntime
