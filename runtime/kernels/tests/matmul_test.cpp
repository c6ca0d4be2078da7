// The window product and the embedding of every path this host runs: against the plain reference, over widths, splits
// and threads, equal to the last bit.
//
//   matmul_test grid                        every format, rounding, block and width, small sizes
//   matmul_test fuzz SEED SECONDS           random cases until the time is over
//   matmul_test paths                       the names of the paths of this host
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "dispatch.h"
#include "reference.h"
#include "threads.h"

namespace tests {
namespace {

using namespace specruntime;

struct Case {
    PackedMatrix matrix;
    int64_t rows;
    bool bias;
    Kind kind;
    int odd_rows;  // rows that hold zeros, tiny numbers, infinities or NaN: 0 none, 1 some
    uint64_t seed;
};

std::string describe(const Case& c) {
    static const char* const formats[] = {"int8", "int4", "fp32", "fp16", "bf16"};
    static const char* const roundings[] = {"blocks", "fine", "rows", "float"};
    static const char* const activations[] = {"none", "silu", "gelu", "gelu_tanh"};
    char text[400];
    std::snprintf(
        text, sizeof text,
        "%s N=%lld K=%lld rows=%lld block=%d %s scales=%s zeros=%d minimum=%d %s bias=%d extreme=%d odd=%d seed=%llu",
        formats[static_cast<int>(c.matrix.format)], static_cast<long long>(c.matrix.outputs),
        static_cast<long long>(c.matrix.inputs), static_cast<long long>(c.rows), c.matrix.block,
        roundings[static_cast<int>(c.matrix.rounding)], c.matrix.scale_type == ScaleType::fp16 ? "fp16" : "fp32",
        c.matrix.has_zeros, c.matrix.has_minimum, activations[static_cast<int>(c.matrix.activation)], c.bias,
        c.kind == Kind::extreme, c.odd_rows, static_cast<unsigned long long>(c.seed));
    return text;
}

std::vector<const Path*> host_paths() {
    std::vector<const Path*> paths;
    size_t count;
    const char* const* names = path_names(&count);
    std::string error;
    for (size_t i = 0; i < count; ++i) {
        if (const Path* path = select_path(names[i], &error)) paths.push_back(path);
    }
    return paths;
}

class Checker {
public:
    /// Run one case on all paths; false and a message where one is wrong.
    bool check(const Case& c) {
        ++cases_;
        Random random(c.seed);
        const Sample sample = sample_of(c.matrix, c.kind, random);
        const std::vector<float> x = rows_of(c, random);
        std::vector<float> bias(static_cast<size_t>(c.matrix.outputs));
        for (float& value : bias) value = static_cast<float>(between(random, -1000, 1000)) / 500.0f;
        const float* given = c.bias ? bias.data() : nullptr;
        const std::string unfit = check_matrix(sample.matrix);
        if (!unfit.empty()) return fail(c, "all", unfit);

        const std::vector<float> sums = reference_sums(sample, x, c.rows, given);
        std::vector<float> first;
        for (const Path* path : paths_) {
            const std::vector<float> y = run(*path, sample, x, c.rows, given, 0);
            if (!first.empty() && !same(y, first)) return fail(c, path->name, "differs from the path before it");
            if (first.empty() && !close_to_reference(sample, sums, y, c)) return fail(c, path->name, message_);
            if (!splits_agree(*path, sample, x, c, given, y, random)) return fail(c, path->name, message_);
            if (c.matrix.activation == Activation::none && !embeds(*path, sample, random)) {
                return fail(c, path->name, "the embedding differs from the reference");
            }
            first = y;
        }
        return true;
    }

    int64_t cases() const { return cases_; }

private:
    std::vector<float> run(const Path& path, const Sample& sample, const std::vector<float>& x, int64_t rows,
                           const float* bias, size_t threads) {
        std::vector<float> y(static_cast<size_t>(rows * results(sample.matrix)), -7.0f);
        window_matmul(path, sample.matrix, x.data(), rows, y.data(), bias, scratch_, threads_[threads].pool());
        return y;
    }

    static bool same(const std::vector<float>& a, const std::vector<float>& b) {
        if (a.size() != b.size()) return false;
        for (size_t i = 0; i < a.size(); ++i) {
            if (std::memcmp(&a[i], &b[i], 4) != 0 && !(std::isnan(a[i]) && std::isnan(b[i]))) return false;
        }
        return true;
    }

    /// The same rows on several threads, one at a time and in random windows.
    bool splits_agree(const Path& path, const Sample& sample, const std::vector<float>& x, const Case& c,
                      const float* bias, const std::vector<float>& whole, Random& random) {
        const auto threads = static_cast<size_t>(between(random, 1, 3));
        if (!same(run(path, sample, x, c.rows, bias, threads), whole)) {
            message_ = "differs with several threads";
            return false;
        }
        const int64_t inputs = c.matrix.inputs, width = results(c.matrix);
        for (int turn = 0; turn < 2; ++turn) {
            for (int64_t at = 0; at < c.rows;) {
                const int64_t count = turn == 0 ? 1 : between(random, 1, std::min<int64_t>(c.rows - at, 40));
                if (turn == 0 && c.rows > 20 && at % 5 != 0) {
                    ++at;
                    continue;
                }
                const std::vector<float> some(x.begin() + at * inputs, x.begin() + (at + count) * inputs);
                const std::vector<float> y = run(path, sample, some, count, bias, 0);
                const std::vector<float> expected(whole.begin() + at * width, whole.begin() + (at + count) * width);
                if (!same(y, expected)) {
                    message_ = "row " + std::to_string(at) + " differs in a window of " + std::to_string(count);
                    return false;
                }
                at += count;
            }
        }
        return true;
    }

    bool close_to_reference(const Sample& sample, const std::vector<float>& sums, const std::vector<float>& y,
                            const Case& c) {
        if (c.matrix.activation == Activation::none) {
            message_ = "differs from the reference";
            return same(sums, y);
        }
        const std::vector<double> expected = reference_activation(sample, sums, c.rows);
        const int64_t half = c.matrix.outputs / 2;
        for (size_t i = 0; i < y.size(); ++i) {
            // A few units in the last place of the gate and one of the product; what underflows may be anything tiny.
            const auto row = static_cast<int64_t>(i) / half, column = static_cast<int64_t>(i) % half;
            const float* pair = sums.data() + row * c.matrix.outputs + column;
            const double size = std::fabs(static_cast<double>(pair[0]) * pair[half]);
            const double bound =
                1e-6 * std::fabs(expected[i]) + 2e-7 * size * (std::fabs(pair[0]) < 90) + 1e-30 * size + 1e-38;
            if (!(std::fabs(expected[i]) < 3e38) && !std::isfinite(y[i])) continue;  // beyond fp32
            if (!(std::fabs(y[i] - expected[i]) <= bound)) {
                char text[160];
                std::snprintf(text, sizeof text, "result %zu is %.9g, the reference %.9g, the bound %.3g", i,
                              static_cast<double>(y[i]), expected[i], bound);
                message_ = text;
                return false;
            }
        }
        return true;
    }

    bool embeds(const Path& path, const Sample& sample, Random& random) {
        std::vector<int64_t> ids;
        for (int i = 0; i < 5; ++i) ids.push_back(between(random, 0, sample.matrix.outputs - 1));
        const auto inputs = static_cast<size_t>(sample.matrix.inputs);
        std::vector<float> y(ids.size() * inputs);
        const auto count = static_cast<int64_t>(ids.size());
        if (!window_embedding(path, sample.matrix, ids.data(), count, y.data(), threads_[1].pool()).empty())
            return false;
        for (size_t i = 0; i < ids.size(); ++i) {
            const std::vector<float> row(y.begin() + static_cast<int64_t>(i * inputs),
                                         y.begin() + static_cast<int64_t>((i + 1) * inputs));
            if (!same(row, reference_embedding(sample, ids[i]))) return false;
        }
        ids[2] = sample.matrix.outputs;
        return !window_embedding(path, sample.matrix, ids.data(), count, y.data(), threads_[0].pool()).empty();
    }

    static std::vector<float> rows_of(const Case& c, Random& random) {
        std::vector<float> x(static_cast<size_t>(c.rows * c.matrix.inputs));
        std::normal_distribution<float> normal;
        for (float& value : x) {
            value = c.kind == Kind::usual ? normal(random) : (between(random, 0, 1) != 0 ? 3.0f : -3.0f);
        }
        static const float odd[] = {0.0f, 1e-31f, 1e-38f, -1e-42f, 1e30f, INFINITY, -INFINITY, NAN};
        for (int64_t row = 0; c.odd_rows != 0 && row < c.rows; row += between(random, 1, 3)) {
            float* from = x.data() + row * c.matrix.inputs;
            const float value = odd[between(random, 0, 7)];
            const bool all = between(random, 0, 1) != 0;
            for (int64_t k = 0; k < c.matrix.inputs; ++k) {
                if (all || between(random, 0, 9) == 0) from[k] = value;
            }
        }
        return x;
    }

    bool fail(const Case& c, const char* path, const std::string& message) {
        std::printf("FAILED on path %s: %s\n  %s\n", path, message.c_str(), describe(c).c_str());
        return false;
    }

    std::vector<const Path*> paths_ = host_paths();
    ScratchPool scratch_;
    Threads threads_[4] = {Threads(1), Threads(2), Threads(3), Threads(5)};
    std::string message_;
    int64_t cases_ = 0;
};

PackedMatrix integer_matrix(Format format, Rounding rounding, int block, int64_t outputs, int64_t inputs) {
    PackedMatrix matrix;
    matrix.format = format, matrix.rounding = rounding, matrix.block = block;
    matrix.outputs = outputs, matrix.inputs = inputs;
    if (rounding == Rounding::rows) matrix.scale_type = ScaleType::fp32;
    return matrix;
}

constexpr int64_t kWidths[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 15, 16, 17, 23, 31, 32, 33, 47, 48, 61, 64, 95, 96, 115};

bool grid_of(Checker& checker, PackedMatrix matrix, uint64_t& seed) {
    for (const int64_t rows : kWidths) {
        for (const Kind kind : {Kind::usual, Kind::extreme}) {
            matrix.activation = static_cast<Activation>(seed % 5 < 4 ? 0 : 1 + seed / 5 % 3);
            if (!checker.check({matrix, rows, seed % 3 == 0, kind, seed % 7 == 0, seed})) return false;
            ++seed;
        }
    }
    return true;
}

bool run_grid() {
    Checker checker;
    uint64_t seed = 1;
    for (const Format format : {Format::int8, Format::int4}) {
        for (const Rounding rounding : {Rounding::blocks, Rounding::fine}) {
            for (const int block : {16, 32, 64, 128}) {
                for (int extras = 0; extras < 8; ++extras) {
                    PackedMatrix matrix = integer_matrix(format, rounding, block, 38, block * 2 + 5);
                    matrix.has_zeros = (extras & 1) != 0, matrix.has_minimum = (extras & 2) != 0;
                    matrix.scale_type = (extras & 4) != 0 ? ScaleType::fp32 : ScaleType::fp16;
                    if (!grid_of(checker, matrix, seed)) return false;
                }
            }
        }
    }
    for (const int64_t inputs : {32, 100, 333}) {
        if (!grid_of(checker, integer_matrix(Format::int8, Rounding::rows, 32, 54, inputs), seed)) return false;
    }
    for (const Format format : {Format::fp32, Format::fp16, Format::bf16}) {
        for (const int64_t inputs : {1, 64, 77}) {
            if (!grid_of(checker, integer_matrix(format, Rounding::unrounded, 32, 150, inputs), seed)) return false;
        }
    }
    std::printf("grid: %lld cases agree\n", static_cast<long long>(checker.cases()));
    return true;
}

Case random_case(uint64_t seed) {
    Random random(seed ^ 0x9e3779b97f4a7c15u);
    const auto any = [&](int64_t low, int64_t high) { return between(random, low, high); };
    PackedMatrix matrix;
    matrix.format = static_cast<Format>(any(0, 9) < 7 ? any(0, 1) : any(2, 4));
    const bool integer = matrix.format == Format::int8 || matrix.format == Format::int4;
    matrix.rounding = integer ? static_cast<Rounding>(any(0, 1)) : Rounding::unrounded;
    if (matrix.format == Format::int8 && any(0, 4) == 0) matrix.rounding = Rounding::rows;
    matrix.block = 16 << any(0, 3);
    matrix.scale_type = static_cast<ScaleType>(any(0, 1));
    matrix.has_zeros = integer && any(0, 2) == 0, matrix.has_minimum = integer && any(0, 1) == 0;
    if (matrix.rounding == Rounding::rows) {
        matrix.block = 32, matrix.scale_type = ScaleType::fp32, matrix.has_zeros = matrix.has_minimum = false;
    }
    const bool large = any(0, 19) == 0;
    matrix.outputs = any(1, large ? 1500 : 120), matrix.inputs = any(1, large ? 900 : 300);
    matrix.activation = static_cast<Activation>(any(0, 2) == 0 ? any(1, 3) : 0);
    if (matrix.activation != Activation::none) matrix.outputs += matrix.outputs % 2;
    const int64_t rows = any(0, 9) == 0 ? any(1, large ? 40 : 600) : any(1, 40);
    return {matrix, rows, any(0, 1) != 0, static_cast<Kind>(any(0, 4) == 0), any(0, 4) == 0, seed};
}

bool run_fuzz(uint64_t seed, double seconds) {
    Checker checker;
    const auto start = std::chrono::steady_clock::now();
    do {
        if (!checker.check(random_case(seed++))) return false;
    } while (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() < seconds);
    std::printf("fuzz: %lld cases agree\n", static_cast<long long>(checker.cases()));
    return true;
}

int print_paths() {
    for (const Path* path : host_paths()) std::printf("%s\n", path->name);
    return 0;
}

}  // namespace
}  // namespace tests

int main(int count, char** words) {
    const std::string mode = count > 1 ? words[1] : "grid";
    if (mode == "paths") return tests::print_paths();
    if (tests::host_paths().empty()) {
        std::printf("no path runs on this host\n");
        return 77;
    }
    if (mode == "fuzz") {
        return tests::run_fuzz(count > 2 ? std::strtoull(words[2], nullptr, 10) : 1,
                               count > 3 ? std::atof(words[3]) : 10)
                   ? 0
                   : 1;
    }
    return tests::run_grid() ? 0 : 1;
}
