// Times all matrix products of one step of SmolLM2-135M (30 layers and the head), for any path, format and rows.
// One thread: processor time of that thread. More threads: wall time, of use on a quiet machine only. All
// combinations take turns, and each shows its smallest time.
//
//   matmul_bench [--paths avx512,amx] [--formats int8,int4-fine] [--rows 1,2,4,6] [--threads 2] [--turns 25]
//   formats: int8 int8-fine int8-rows int4 int4-fine fp32 fp16 bf16 (the integer ones with minimum, as Q4_1 has it)
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <map>
#include <string>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "packing.h"
#include "threads.h"

namespace tests {
namespace {

using namespace specruntime;

struct Options {
    std::vector<std::string> paths = {"auto"};
    std::vector<std::string> formats = {"int8", "int8-fine", "int4", "int4-fine"};
    std::vector<std::string> rows = {"1", "2", "4", "6", "8", "12", "16"};
    int threads = 1;
    int turns = 25;
};

std::vector<std::string> words_of(const std::string& list) {
    std::vector<std::string> words(1);
    for (const char letter : list) {
        if (letter == ',') {
            words.emplace_back();
        } else {
            words.back() += letter;
        }
    }
    return words;
}

double seconds(clockid_t clock) {
    timespec time;
    clock_gettime(clock, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

PackedMatrix describe(const std::string& format, int64_t outputs, int64_t inputs, bool head) {
    const size_t dash = format.find('-');
    PackedMatrix matrix;
    matrix.outputs = outputs, matrix.inputs = inputs;
    parse_format(format.substr(0, dash), &matrix.format);
    const bool integer = matrix.format == Format::int8 || matrix.format == Format::int4;
    if (!integer) matrix.rounding = Rounding::unrounded;
    if (dash != std::string::npos) parse_rounding(format.substr(dash + 1), &matrix.rounding);
    if (matrix.rounding == Rounding::rows) matrix.scale_type = ScaleType::fp32;
    matrix.has_minimum = integer && matrix.rounding != Rounding::rows && !head;
    if (head && matrix.format == Format::int4) matrix.format = Format::int8;
    return matrix;
}

/// The matrices of a step, each with bytes of its own, in one piece of memory.
struct Step {
    std::vector<PackedMatrix> matrices;
    std::unique_ptr<Bytes> bytes;
    size_t size = 0;
};

Step step_of(const std::string& format) {
    Random random(1);
    Step step;
    std::vector<Sample> samples;
    constexpr int64_t kShapes[][2] = {{960, 576}, {576, 576}, {3072, 576}, {576, 1536}, {49152, 576}};
    constexpr int kLayers = 30, kHead = 4;
    for (int i = 0; i <= kHead; ++i) {
        PackedMatrix matrix = describe(format, kShapes[i][0], kShapes[i][1], i == kHead);
        if (i == 2) matrix.activation = Activation::silu;
        samples.push_back(sample_of(matrix, Kind::usual, random));
        step.size += samples.back().matrix.bytes * (i == kHead ? 1 : kLayers);
    }
    step.bytes = std::make_unique<Bytes>(step.size + (4 << 20));
    uint8_t* to = step.bytes->get();
#if defined(__linux__)
    madvise(to, step.size, MADV_HUGEPAGE);
#endif
    const auto add = [&](const Sample& sample) {
        std::memcpy(to, sample.matrix.data, sample.matrix.bytes);
        step.matrices.push_back(sample.matrix);
        step.matrices.back().data = to;
        to += sample.matrix.bytes;
    };
    for (int layer = 0; layer < kLayers; ++layer) {
        for (int i = 0; i < kHead; ++i) add(samples[static_cast<size_t>(i)]);
    }
    add(samples[kHead]);
    return step;
}

void measure(const Options& options, const std::string& format) {
    const Step step = step_of(format);
    std::vector<const Path*> paths;
    std::string error;
    for (const std::string& name : options.paths) {
        if (const Path* path = select_path(name, &error)) {
            paths.push_back(path);
        } else {
            std::printf("%s\n", error.c_str());
        }
    }
    Threads threads(options.threads);
    ScratchPool scratch;
    std::vector<float> x(512 * 1536), y(static_cast<size_t>(std::stoll(options.rows.back())) * 49152);
    Random random(2);
    for (float& value : x) value = static_cast<float>(between(random, -1000, 1000)) / 250.0f;
    std::map<std::pair<const Path*, size_t>, double> best;
    const clockid_t clock = options.threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC;
    for (int turn = 0; turn < options.turns; ++turn) {
        for (size_t i = 0; i < options.rows.size(); ++i) {
            for (const Path* path : paths) {
                const int64_t rows = std::stoll(options.rows[i]);
                const double start = seconds(clock);
                for (const PackedMatrix& matrix : step.matrices) {
                    // The head is read for the last row alone where a prompt is taken in.
                    const bool head = matrix.outputs == 49152 && rows > 16;
                    window_matmul(*path, matrix, x.data(), head ? 1 : rows, y.data(), nullptr, scratch, threads.pool());
                }
                const double time = seconds(clock) - start;
                double& least = best.try_emplace({path, i}, time).first->second;
                least = std::min(least, time);
            }
        }
    }
    std::printf("%s: %.1f MB of weights, %d thread(s), ms\n", format.c_str(), static_cast<double>(step.size) / 1e6,
                options.threads);
    for (const Path* path : paths) {
        std::printf("  %-13s", path->name);
        for (size_t i = 0; i < options.rows.size(); ++i) {
            std::printf(" %s: %.2f", options.rows[i].c_str(), best[{path, i}] * 1e3);
        }
        const double first = best[{path, 0}];
        std::printf("   (%.1f GB/s at the first)\n", static_cast<double>(step.size) / first / 1e9);
    }
    std::fflush(stdout);
}

}  // namespace
}  // namespace tests

int main(int count, char** words) {
    tests::Options options;
    for (int i = 1; i + 1 < count; i += 2) {
        const std::string name = words[i];
        if (name == "--paths") options.paths = tests::words_of(words[i + 1]);
        if (name == "--formats") options.formats = tests::words_of(words[i + 1]);
        if (name == "--rows") options.rows = tests::words_of(words[i + 1]);
        if (name == "--threads") options.threads = std::atoi(words[i + 1]);
        if (name == "--turns") options.turns = std::atoi(words[i + 1]);
    }
    for (const std::string& format : options.formats) tests::measure(options, format);
    return 0;
}
