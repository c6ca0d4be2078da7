// What the tests of attention run on: random nodes and tokens, a batch of caches, and a reference in double precision.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "attention/attention.h"
#include "dispatch.h"

namespace specruntime {

using Random = std::mt19937_64;

inline int between(Random& random, int low, int high) { return low + static_cast<int>(random() % (high - low + 1)); }
template <class T>
T one_of(Random& random, std::initializer_list<T> choices) {
    return *(choices.begin() + random() % choices.size());
}

// Nearly normal, and the same on every host, which std::normal_distribution is not.
inline float normal(Random& random) {
    float sum = -4;
    for (int k = 0; k < 8; ++k) sum += static_cast<float>(random() >> 40) * 0x1p-24f;
    return sum * 1.2247449f;
}

// A node of a graph with its tables.
struct Node {
    AttentionShape shape;
    bool packed = true;
    std::vector<float> cos, sin, sinks;
    std::int64_t positions = 0;

    std::size_t query_size() const { return static_cast<std::size_t>(shape.heads * shape.head_size); }
    std::size_t key_size() const { return static_cast<std::size_t>(shape.kv_heads * shape.head_size); }
    std::size_t row_size() const { return query_size() + 2 * key_size(); }
};

inline Node make_node(const AttentionShape& shape, std::int64_t positions, bool sinks, Random& random) {
    Node node;
    node.shape = shape;
    node.positions = positions;
    const int half = shape.rotary_dims / 2;
    for (std::int64_t p = 0; p < positions; ++p) {
        for (int k = 0; k < half; ++k) {
            const double angle = static_cast<double>(p) * std::pow(10000.0, -static_cast<double>(k) / half);
            node.cos.push_back(static_cast<float>(std::cos(angle)));
            node.sin.push_back(static_cast<float>(std::sin(angle)));
        }
    }
    for (int h = 0; sinks && h < shape.heads; ++h) node.sinks.push_back(2 * normal(random));
    return node;
}

// Query, key and value of one token, as a packed row. Some heads have large numbers, some tokens stand out.
using Row = std::vector<float>;
inline Row make_row(const Node& node, Random& random) {
    Row row(node.row_size());
    const float size = between(random, 0, 20) == 0 ? 8.0f : 1.0f;
    for (float& x : row) x = size * normal(random);
    return row;
}

// What one sequence of the batch gets in a step.
struct Lane {
    std::vector<const Row*> rows;
    std::vector<std::int64_t> positions;  // empty: none given
    std::vector<std::vector<bool>> sees;  // empty: a chain
};

// A batch of caches, and one run after another over them.
class Host {
public:
    Host(const Node& node, int batch, std::int64_t capacity, const AttentionKernels& kernels, Pool pool)
        : node_(node), batch_(batch), capacity_(capacity), kernels_(kernels), pool_(pool), lengths(batch, 0) {
        row_bytes_ = cache_row_bytes(node.shape);
        // Rows that nobody wrote hold NaN.
        const std::size_t bytes = static_cast<std::size_t>(batch * node.shape.kv_heads * capacity) * row_bytes_;
        keys_.assign(bytes, 0xff);
        values_.assign(bytes, 0xff);
    }

    // Outputs [lane][row], of `width` rows a lane.
    std::vector<Row> step(const std::vector<Lane>& lanes, int width, Random& random) {
        const std::size_t rows = static_cast<std::size_t>(batch_) * static_cast<std::size_t>(width);
        bool positions = false, masks = false;
        for (const Lane& lane : lanes) positions |= !lane.positions.empty(), masks |= !lane.sees.empty();
        std::vector<float> input(rows * node_.row_size(), std::nanf(""));  // padding holds NaN
        std::vector<std::int64_t> position_ids(rows, 0);
        const auto mask = std::make_unique<bool[]>(rows * static_cast<std::size_t>(width));
        for (std::size_t k = 0; k < rows * static_cast<std::size_t>(width); ++k) mask[k] = random() % 2;
        std::vector<std::int32_t> query_lengths;
        for (int b = 0; b < batch_; ++b) fill(lanes[b], b, width, input.data(), position_ids.data(), mask.get());
        for (const Lane& lane : lanes) query_lengths.push_back(static_cast<std::int32_t>(lane.rows.size()));
        std::vector<float> out(rows * node_.query_size(), std::nanf(""));
        AttentionCall call = make_call(width, input.data(), out.data());
        call.query_lengths = query_lengths.data();
        if (positions) call.position_ids = position_ids.data();
        if (masks) call.window_mask = mask.get();
        run(call, input);
        return split(out);
    }

    // As a runtime does after a tree: cache row length + path[k] becomes row length + k.
    void accept(int b, const std::vector<int>& path) {
        for (int h = 0; h < node_.shape.kv_heads; ++h) {
            for (auto* cache : {&keys_, &values_}) {
                std::vector<std::uint8_t> moved;
                for (int row : path) {
                    const std::uint8_t* from = cache->data() + offset(b, h, lengths[b] + row);
                    moved.insert(moved.end(), from, from + row_bytes_);
                }
                if (!path.empty()) std::memcpy(cache->data() + offset(b, h, lengths[b]), moved.data(), moved.size());
            }
        }
        lengths[b] += static_cast<std::int64_t>(path.size());
    }

    const std::uint8_t* key(int b, int head, std::int64_t row) const { return keys_.data() + offset(b, head, row); }
    const std::uint8_t* value(int b, int head, std::int64_t row) const { return values_.data() + offset(b, head, row); }
    std::size_t row_bytes() const { return row_bytes_; }
    std::size_t scratch_bytes() const { return scratch_.size(); }
    int batch() const { return batch_; }

private:
    std::size_t offset(int b, int head, std::int64_t row) const {
        return static_cast<std::size_t>((b * node_.shape.kv_heads + head) * capacity_ + row) * row_bytes_;
    }

    void fill(const Lane& lane, int b, int width, float* input, std::int64_t* position_ids, bool* mask) const {
        for (int i = 0; i < width; ++i) {
            const std::size_t row = static_cast<std::size_t>(b) * width + i;
            if (i >= static_cast<int>(lane.rows.size())) {
                position_ids[row] = -7;  // of padding: not to be read
                continue;
            }
            std::memcpy(input + row * node_.row_size(), lane.rows[i]->data(), node_.row_size() * sizeof(float));
            position_ids[row] = lane.positions.empty() ? lengths[b] + i : lane.positions[i];
            for (std::size_t j = 0; j < lane.rows.size(); ++j) {
                mask[row * width + j] = lane.sees.empty() ? static_cast<int>(j) <= i : lane.sees[i][j];
            }
        }
    }

    AttentionCall make_call(int width, const float* input, float* out) {
        AttentionCall call;
        call.batch = batch_;
        call.width = width;
        call.capacity = capacity_;
        set_packed(call, node_.shape, input);
        call.key_cache = keys_.data();
        call.value_cache = values_.data();
        call.cache_length = lengths.data();
        call.cos = node_.cos.data();
        call.sin = node_.sin.data();
        call.rotary_positions = node_.positions;
        call.sinks = node_.sinks.empty() ? nullptr : node_.sinks.data();
        call.out = out;
        return call;
    }

    void run(AttentionCall& call, const std::vector<float>& input) {
        std::vector<float> parts[3];  // query, key and value apart
        if (!node_.packed) {
            const std::size_t rows = input.size() / node_.row_size();
            for (std::size_t r = 0; r < rows; ++r) {
                const float* at = input.data() + r * node_.row_size();
                for (int k = 0; k < 3; ++k) {
                    const std::size_t size = k == 0 ? node_.query_size() : node_.key_size();
                    parts[k].insert(parts[k].end(), at, at + size);
                    at += size;
                }
            }
            call.query = parts[0].data(), call.key = parts[1].data(), call.value = parts[2].data();
            call.query_stride = node_.query_size(), call.key_stride = call.value_stride = node_.key_size();
        }
        const char* refusal = refuse_call(node_.shape, call);
        if (refusal != nullptr) {
            std::printf("refused: %s\n", refusal);
            std::exit(1);
        }
        window_attention(kernels_, node_.shape, call, scratch_, pool_);
    }

    std::vector<Row> split(const std::vector<float>& out) const {
        std::vector<Row> rows;
        for (std::size_t at = 0; at < out.size(); at += node_.query_size()) {
            rows.emplace_back(out.begin() + at, out.begin() + at + node_.query_size());
        }
        return rows;
    }

    const Node& node_;
    int batch_;
    std::int64_t capacity_;
    const AttentionKernels& kernels_;
    Pool pool_;
    std::size_t row_bytes_;
    std::vector<std::uint8_t> keys_, values_;
    Scratch scratch_;

public:
    std::vector<std::int64_t> lengths;  // committed rows
};

// One head of a row's output in double precision, over the cache as it is: the row at position `place` of a chain.
// `tolerance`: how far off the kernels may be. Scores are sums in single precision, and queries are rounded to 16 bits
// for an int8 cache; weights change as much as scores do.
struct Reference {
    std::vector<double> out;
    double tolerance;
};

inline Reference reference(const Node& node, const Host& host, const Row& row, std::int64_t place, int head) {
    const AttentionShape& shape = node.shape;
    const int size = shape.head_size, half = shape.rotary_dims / 2, kv_head = head / (shape.heads / shape.kv_heads);
    std::vector<double> query(row.begin() + head * size, row.begin() + (head + 1) * size);
    for (int k = 0; k < half; ++k) {
        const int a = shape.rotary_interleaved ? 2 * k : k, b = shape.rotary_interleaved ? 2 * k + 1 : half + k;
        const double c = node.cos[place * half + k], s = node.sin[place * half + k], x = query[a], y = query[b];
        query[a] = x * c - y * s;
        query[b] = y * c + x * s;
    }
    const auto number = [&](const std::uint8_t* bytes, int d) {
        float x;
        if (shape.cache == CacheType::fp32) {
            std::memcpy(&x, bytes + 4 * d, sizeof x);
            return static_cast<double>(x);
        }
        std::memcpy(&x, bytes + size, sizeof x);
        return static_cast<double>(x) * static_cast<std::int8_t>(bytes[d]);
    };
    const std::int64_t first = shape.local_window < 0 ? 0 : std::max<std::int64_t>(0, place - shape.local_window + 1);
    const double scale = shape.scale != 0 ? shape.scale : 1 / std::sqrt(static_cast<double>(size));
    double largest_query = 0, largest_value = 0, score_error = 0;
    for (double x : query) largest_query = std::max(largest_query, std::fabs(x));
    std::vector<double> scores;
    double highest = node.sinks.empty() ? -INFINITY : node.sinks[head];
    for (std::int64_t t = first; t <= place; ++t) {
        double sum = 0, sizes = 0, keys = 0;
        for (int d = 0; d < size; ++d) {
            const double key = number(host.key(0, kv_head, t), d);
            sum += query[d] * key;
            sizes += std::fabs(query[d] * key);
            keys += std::fabs(key);
        }
        sum *= scale;
        const double rounded = shape.cache == CacheType::int8 ? largest_query / 65534 * keys : 0;
        score_error = std::max(score_error, scale * (1e-6 * sizes + rounded));
        if (shape.softcap > 0) sum = shape.softcap * std::tanh(sum / shape.softcap);
        scores.push_back(sum);
        highest = std::max(highest, sum);
    }
    double total = node.sinks.empty() ? 0 : std::exp(node.sinks[head] - highest);
    std::vector<double> out(size, 0.0);
    for (std::int64_t t = first; t <= place; ++t) {
        const double weight = std::exp(scores[t - first] - highest);
        total += weight;
        for (int d = 0; d < size; ++d) {
            const double value = number(host.value(0, kv_head, t), d);
            out[d] += weight * value;
            largest_value = std::max(largest_value, std::fabs(value));
        }
    }
    for (double& x : out) x /= total;
    return {out, largest_value * (2 * score_error + 1e-5)};
}

}  // namespace specruntime
