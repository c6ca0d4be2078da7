// Processor time of window attention: all layers of a model, one thread, minimum of interleaved turns.
//
//     attention_bench [path [turns [layers heads kv_heads head_size]]]
//
// Every layer has caches of its own, so long contexts come from memory as they do in a step.
#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "attention_host.h"

using namespace specruntime;

namespace {

double thread_milliseconds() {
    timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
}

struct Setting {
    CacheType cache;
    int width;
    std::int64_t committed;
    double best;
};

struct Layers {
    std::vector<std::vector<std::uint8_t>> keys, values;

    Layers(const AttentionShape& shape, int layers, std::int64_t capacity) {
        const std::size_t bytes = static_cast<std::size_t>(shape.kv_heads * capacity) * cache_row_bytes(shape);
        for (int k = 0; k < layers; ++k) keys.emplace_back(bytes), values.emplace_back(bytes);
    }
};

// One step over all layers.
double step(const AttentionKernels& kernels, const AttentionShape& shape, Layers& layers, std::int64_t capacity,
            const Setting& setting, const std::vector<float>& input, std::vector<float>& out,
            const std::vector<float>& table, Scratch& scratch) {
    AttentionCall call;
    call.batch = 1;
    call.width = setting.width;
    call.capacity = capacity;
    set_packed(call, shape, input.data());
    call.cache_length = &setting.committed;
    call.cos = call.sin = table.data();
    call.rotary_positions = capacity;
    call.out = out.data();
    const double start = thread_milliseconds();
    for (std::size_t k = 0; k < layers.keys.size(); ++k) {
        call.key_cache = layers.keys[k].data();
        call.value_cache = layers.values[k].data();
        window_attention(kernels, shape, call, scratch, Pool{});
    }
    return thread_milliseconds() - start;
}

AttentionShape node_that_sees_little(AttentionShape shape) {
    shape.local_window = 1;
    return shape;
}

}  // namespace

int main(int argc, char** argv) {
    const auto number = [&](int k, int otherwise) { return argc > k ? std::atoi(argv[k]) : otherwise; };
    std::string error;
    const Path* path = select_path(argc > 1 ? argv[1] : "", &error);
    if (path == nullptr) {
        std::printf("%s\n", error.c_str());
        return 1;
    }
    const int turns = number(2, 20), layer_count = number(3, 30);
    AttentionShape shape;
    shape.heads = number(4, 9);
    shape.kv_heads = number(5, 3);
    shape.head_size = number(6, 64);
    shape.rotary_dims = shape.head_size;
    constexpr std::int64_t capacity = 16600;
    Random random(1);
    std::vector<float> table(static_cast<std::size_t>(capacity * shape.rotary_dims / 2), 0.7071f);
    const std::size_t row = static_cast<std::size_t>((shape.heads + 2 * shape.kv_heads) * shape.head_size);
    std::vector<float> input(512 * row), out(512 * static_cast<std::size_t>(shape.heads * shape.head_size));
    for (float& x : input) x = normal(random);
    Scratch scratch;
    std::printf("path %s: milliseconds of %d layers, %d heads, %d key heads, head size %d\n", path->name, layer_count,
                shape.heads, shape.kv_heads, shape.head_size);
    for (const CacheType cache : {CacheType::fp32, CacheType::int8}) {
        shape.cache = cache;
        Layers layers(shape, layer_count, capacity);
        for (std::int64_t at = 0; at + 512 <= capacity; at += 512) {  // fill the caches; what the rows see is no matter
            step(*path->attention, node_that_sees_little(shape), layers, capacity, {cache, 512, at, 0}, input, out,
                 table, scratch);
        }
        std::vector<Setting> settings;
        for (const std::int64_t committed : {200, 1000, 2000, 16000}) {
            for (const int width : {1, 2, 4, 6, 12}) settings.push_back({cache, width, committed, 1e9});
        }
        settings.push_back({cache, 512, 0, 1e9});
        for (int turn = 0; turn < turns; ++turn) {
            for (Setting& setting : settings) {
                if (setting.width * setting.committed >= 16000 && turn >= 1 + turns / 4) continue;  // long ones
                for (int k = 0; k < 2; ++k) {  // the second time as soon after the first as steps follow each other
                    const double time =
                        step(*path->attention, shape, layers, capacity, setting, input, out, table, scratch);
                    setting.best = std::min(setting.best, time);
                }
            }
        }
        for (const Setting& setting : settings) {
            if (setting.width == 1)
                std::printf("\n%s cache, %5lld tokens:", cache == CacheType::int8 ? "int8" : "fp32",
                            static_cast<long long>(setting.committed));
            if (setting.width == 512)
                std::printf("\nprefill of 512: %.1f\n", setting.best);
            else
                std::printf("  W%d %.2f", setting.width, setting.best);
        }
    }
    return 0;
}
