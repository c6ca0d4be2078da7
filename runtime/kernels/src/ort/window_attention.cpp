// WindowAttention: attention of a window's rows over the KV cache, which is written in place.
//
// Inputs: query float32 [B, W, H*D] with key and value [B, W, KV*D], or packed rows [B, W, (H+2*KV)*D] alone;
// past_key and past_value [B, KV, capacity, D], or int8 [B, KV, capacity, D+4]; cache_length int64 [B];
// query_lengths int32 [B]; cos, sin float32 [positions, rotary/2]; position_ids int64 [B, W];
// window_mask bool [B, W, W]; sinks float32 [H]. Outputs: out float32 [B, W, H*D]; present_key and present_value, the
// same memory as the past ones.
#include <cstring>
#include <limits>

#include "attention/attention.h"
#include "ort/node.h"
#include "ort/operators.h"

namespace specruntime::ort {

namespace {

constexpr const char* kName = "WindowAttention";

enum Input : size_t {
    kQuery,
    kKey,
    kValue,
    kPastKey,
    kPastValue,
    kCacheLength,
    kQueryLengths,
    kCos,
    kSin,
    kPositionIds,
    kWindowMask,
    kSinks,
    kInputs,
};

class Kernel {
public:
    Kernel(const Operator& op, const OrtKernelInfo* info) : api_(op.api), path_(*op.path) {
        const Node node(api_, info, kName);
        label_ = node.label();
        shape_.heads = count(node, "num_heads");
        shape_.kv_heads = count(node, "kv_num_heads");
        shape_.scale = node.real("scale", 0.0f);
        shape_.softcap = node.real("softcap", 0.0f);
        shape_.local_window = node.integer("local_window_size", -1);
        shape_.rotary_interleaved = node.flag("rotary_interleaved");
        rotary_ = node.flag("do_rotary");
        const std::string cache = node.word("cache", "fp32");
        if (cache != "fp32" && cache != "int8") {
            node.refuse("attribute cache is '" + cache + "', expected fp32 or int8");
        }
        shape_.cache = cache == "int8" ? CacheType::int8 : CacheType::fp32;
        if (path_.attention == nullptr) node.refuse(std::string("path ") + path_.name + " has no attention");
    }

    const Api& api() const { return api_; }

    void run(OrtKernelContext* context) {
        Run run(api_, context, label_);
        AttentionShape shape = shape_;
        AttentionCall call;
        const Caches caches = read_caches(run, shape, call);
        read_rows(run, shape, call);
        read_lengths(run, call);
        read_rotary(run, shape, call);
        read_mask(run, shape, call);
        if (const char* problem = refuse_shape(shape)) run.refuse(problem);
        const Tensor out = run.output(0, {{call.batch, call.width, int64_t{shape.heads} * shape.head_size}, 3});
        call.out = static_cast<float*>(out.data);
        call.key_cache = present(run, 1, caches.key, "past_key");
        call.value_cache = present(run, 2, caches.value, "past_value");
        if (caches.key.bytes() > 0 && call.key_cache == call.value_cache) {
            run.refuse("present_key and present_value are the same memory");
        }
        if (call.batch == 0 || call.width == 0) return;
        if (const char* problem = refuse_call(shape, call)) run.refuse(problem);
        const ScratchPool::Lease scratch(scratch_);
        window_attention(*path_.attention, shape, call, *scratch, run.pool());
        run.finish();
    }

private:
    struct Caches {
        Tensor key, value;
    };

    static int count(const Node& node, const char* key) {
        const int64_t value = node.integer(key);
        if (value < 1 || value > 65536) {
            node.refuse(std::string("attribute ") + key + " is " + std::to_string(value) + ", expected 1 to 65536");
        }
        return static_cast<int>(value);
    }

    static int narrow(const Run& run, const char* name, int64_t size) {
        if (size < 0 || size > std::numeric_limits<int>::max()) {
            run.refuse(std::string(name) + " has a size of " + std::to_string(size));
        }
        return static_cast<int>(size);
    }

    [[noreturn]] static void refuse_sizes(const Run& run, const char* name, const Tensor& found,
                                          const std::string& expected) {
        run.refuse(std::string(name) + " has shape " + found.sizes.words() + ", expected " + expected);
    }

    Caches read_caches(const Run& run, AttentionShape& shape, AttentionCall& call) const {
        const bool int8 = shape.cache == CacheType::int8;
        const ElementType type = int8 ? kInt8 : kFloat;
        Caches caches{run.required(kPastKey, "past_key", type), run.required(kPastValue, "past_value", type)};
        const Sizes& sizes = caches.key.sizes;
        if (!sizes.is({-1, shape.kv_heads, -1, -1})) {
            const std::string row = int8 ? "head size + 4" : "head size";
            refuse_sizes(run, "past_key", caches.key,
                         "[batch, " + std::to_string(shape.kv_heads) + ", capacity, " + row + "]");
        }
        if (!caches.value.sizes.is({sizes[0], sizes[1], sizes[2], sizes[3]})) {
            refuse_sizes(run, "past_value", caches.value, "that of past_key, " + sizes.words());
        }
        shape.head_size = narrow(run, "past_key", sizes[3] - (int8 ? 4 : 0));
        call.batch = narrow(run, "past_key", sizes[0]);
        call.capacity = sizes[2];
        return caches;
    }

    static void read_rows(const Run& run, const AttentionShape& shape, AttentionCall& call) {
        const Tensor query = run.required(kQuery, "query", kFloat);
        const Tensor key = run.optional(kKey, "key", kFloat);
        const Tensor value = run.optional(kValue, "value", kFloat);
        if (static_cast<bool>(key) != static_cast<bool>(value)) run.refuse("only one of key and value is given");
        const int64_t heads = int64_t{shape.heads} * shape.head_size, kv = int64_t{shape.kv_heads} * shape.head_size;
        const int64_t columns = key ? heads : heads + 2 * kv;
        if (!query.sizes.is({call.batch, -1, columns})) {
            refuse_sizes(run, "query", query,
                         "[" + std::to_string(call.batch) + ", width, " + std::to_string(columns) + "]");
        }
        call.width = narrow(run, "query", query.sizes[1]);
        if (!key) {
            set_packed(call, shape, query.as<float>());
            return;
        }
        const std::string expected =
            "[" + std::to_string(call.batch) + ", " + std::to_string(call.width) + ", " + std::to_string(kv) + "]";
        if (!key.sizes.is({call.batch, call.width, kv})) refuse_sizes(run, "key", key, expected);
        if (!value.sizes.is({call.batch, call.width, kv})) refuse_sizes(run, "value", value, expected);
        call.query = query.as<float>();
        call.key = key.as<float>();
        call.value = value.as<float>();
        call.query_stride = static_cast<size_t>(heads);
        call.key_stride = call.value_stride = static_cast<size_t>(kv);
    }

    static void read_lengths(const Run& run, AttentionCall& call) {
        const std::string expected = "[" + std::to_string(call.batch) + "]";
        const Tensor lengths = run.required(kCacheLength, "cache_length", kInt64);
        if (!lengths.sizes.is({call.batch})) refuse_sizes(run, "cache_length", lengths, expected);
        call.cache_length = lengths.as<int64_t>();
        const Tensor valid = run.optional(kQueryLengths, "query_lengths", kInt32);
        if (valid && !valid.sizes.is({call.batch})) refuse_sizes(run, "query_lengths", valid, expected);
        call.query_lengths = valid.as<int32_t>();
        const Tensor positions = run.optional(kPositionIds, "position_ids", kInt64);
        if (positions && !positions.sizes.is({call.batch, call.width})) {
            refuse_sizes(run, "position_ids", positions,
                         "[" + std::to_string(call.batch) + ", " + std::to_string(call.width) + "]");
        }
        call.position_ids = positions.as<int64_t>();
    }

    void read_rotary(const Run& run, AttentionShape& shape, AttentionCall& call) const {
        if (!rotary_) return;
        const Tensor cos = run.required(kCos, "cos", kFloat), sin = run.required(kSin, "sin", kFloat);
        if (!cos.sizes.is({-1, -1})) refuse_sizes(run, "cos", cos, "[positions, rotary size / 2]");
        if (!sin.sizes.is({cos.sizes[0], cos.sizes[1]})) {
            refuse_sizes(run, "sin", sin, "that of cos, " + cos.sizes.words());
        }
        const int64_t dims = 2 * cos.sizes[1];
        if (dims < 2 || dims > shape.head_size) {
            run.refuse("cos turns " + std::to_string(dims) + " dimensions of a head of " +
                       std::to_string(shape.head_size));
        }
        shape.rotary_dims = static_cast<int>(dims);
        call.cos = cos.as<float>();
        call.sin = sin.as<float>();
        call.rotary_positions = cos.sizes[0];
    }

    static void read_mask(const Run& run, const AttentionShape& shape, AttentionCall& call) {
        const Tensor mask = run.optional(kWindowMask, "window_mask", kBool);
        if (mask && !mask.sizes.is({call.batch, call.width, call.width})) {
            const std::string width = std::to_string(call.width);
            refuse_sizes(run, "window_mask", mask,
                         "[" + std::to_string(call.batch) + ", " + width + ", " + width + "]");
        }
        call.window_mask = mask.as<bool>();
        const Tensor sinks = run.optional(kSinks, "sinks", kFloat);
        if (sinks && !sinks.sizes.is({shape.heads})) {
            refuse_sizes(run, "sinks", sinks, "[" + std::to_string(shape.heads) + "]");
        }
        call.sinks = sinks.as<float>();
    }

    // The memory of a present output. Bound to the past input's memory it is written in place; bound elsewhere it gets
    // a copy first. Refused where both overlap otherwise.
    static void* present(const Run& run, size_t index, const Tensor& past, const char* name) {
        const Tensor output = run.output(index, past.sizes);
        if (!output) run.refuse("output " + std::to_string(index) + " is left out, expected the cache");
        const size_t bytes = past.bytes();
        const auto from = reinterpret_cast<uintptr_t>(past.data), to = reinterpret_cast<uintptr_t>(output.data);
        if (from == to || bytes == 0) return output.data;
        if (from < to + bytes && to < from + bytes) {
            run.refuse(std::string(name) + " overlaps its output without being the same memory");
        }
        std::memcpy(output.data, past.data, bytes);
        return output.data;
    }

    Api api_;
    const Path& path_;
    std::string label_;
    AttentionShape shape_;
    bool rotary_ = false;
    ScratchPool scratch_;
};

template <int cache>
int input_type(const OrtCustomOp*, size_t index) {
    switch (index) {
        case kPastKey:
        case kPastValue:
            return cache;
        case kCacheLength:
        case kPositionIds:
            return kInt64;
        case kQueryLengths:
            return kInt32;
        case kWindowMask:
            return kBool;
        default:
            return kFloat;
    }
}

template <int cache>
int output_type(const OrtCustomOp*, size_t index) {
    return index == 0 ? static_cast<int>(kFloat) : cache;
}

}  // namespace

void describe_attention(Operator& op, CacheElement cache) {
    op.GetName = [](const OrtCustomOp*) { return kName; };
    op.GetInputTypeCount = [](const OrtCustomOp*) -> size_t { return kInputs; };
    op.GetOutputTypeCount = [](const OrtCustomOp*) -> size_t { return 3; };
    op.GetInputCharacteristic = [](const OrtCustomOp*, size_t index) -> int {
        const bool always = index == kQuery || index == kPastKey || index == kPastValue || index == kCacheLength;
        return always ? kRequired : kOptional;
    };
    // One operator an element type of the cache: ONNX Runtime takes the one that fits a node.
    const bool int8 = cache == CacheElement::int8;
    op.GetInputType = int8 ? input_type<kInt8> : input_type<kFloat>;
    op.GetOutputType = int8 ? output_type<kInt8> : output_type<kFloat>;
    serve<Kernel>(op);
}

}  // namespace specruntime::ort
