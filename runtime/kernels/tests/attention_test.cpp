// Window attention: a row's bits depend on the row and what it sees only, and they are close to a plain reference.
//
//     attention_test [seconds [seed [threads [nodes]]]]
//
// Random nodes for so many seconds, or so many nodes; the digest of all outputs is the same on hosts of any kind. For
// each, tokens decoded one by one are the truth; the same tokens in windows, as branches of trees with rejected
// neighbours, padded, in batches, on several threads and on every path of this host must give the same bits, in outputs
// and in cache rows.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>

#include "attention_host.h"
#include "threads.h"

using namespace specruntime;

namespace {

struct Case {
    Node node;
    std::vector<Row> tokens;
    std::size_t prompt;  // tokens that come in one window
    std::int64_t capacity;
};

std::string describe(const Case& c) {
    const AttentionShape& s = c.node.shape;
    char text[300];
    std::snprintf(
        text, sizeof text,
        "heads %d/%d size %d softcap %g local %lld rotary %d%s cache %s sinks %d packed %d tokens %zu prompt %zu",
        s.heads, s.kv_heads, s.head_size, static_cast<double>(s.softcap), static_cast<long long>(s.local_window),
        s.rotary_dims, s.rotary_interleaved ? " interleaved" : "", s.cache == CacheType::int8 ? "int8" : "fp32",
        !c.node.sinks.empty(), c.node.packed, c.tokens.size(), c.prompt);
    return text;
}

[[noreturn]] void fail(const Case& c, const std::string& what) {
    std::printf("FAILED: %s\n  %s\n", what.c_str(), describe(c).c_str());
    std::exit(1);
}

Case make_case(Random& random) {
    AttentionShape shape;
    const int group = one_of(random, {1, 1, 2, 3, 4, 5, 7, 8, 16});
    shape.kv_heads = between(random, 1, 3);
    shape.heads = group * shape.kv_heads;
    shape.head_size = one_of(random, {8, 16, 24, 32, 40, 64, 64, 64, 72, 80, 96, 128, 192, 256});
    if (between(random, 0, 2) == 0) shape.scale = 0.3f;
    if (between(random, 0, 2) == 0) shape.softcap = one_of(random, {5.0f, 50.0f});
    if (between(random, 0, 2) == 0) shape.local_window = between(random, 1, between(random, 2, 300));
    if (between(random, 0, 3) != 0) shape.rotary_dims = one_of(random, {1, 2, 4}) * shape.head_size / 4;
    shape.rotary_interleaved = random() % 2;
    if (random() % 2) shape.cache = CacheType::int8;
    Case c;
    c.prompt = static_cast<std::size_t>(between(random, 0, one_of(random, {3, 140, 300, 600})));
    const int count = static_cast<int>(c.prompt) + between(random, 5, 40);
    c.capacity = count + 40;
    c.node = make_node(shape, c.capacity, random() % 3 == 0, random);
    c.node.packed = random() % 2;
    for (int t = 0; t < count; ++t) c.tokens.push_back(make_row(c.node, random));
    return c;
}

Lane chain(const Case& c, std::size_t first, std::size_t count) {
    Lane lane;
    for (std::size_t t = first; t < first + count; ++t) lane.rows.push_back(&c.tokens[t]);
    return lane;
}

std::vector<int> in_order(std::size_t count) {
    std::vector<int> path;
    for (std::size_t k = 0; k < count; ++k) path.push_back(static_cast<int>(k));
    return path;
}

// The prompt in one window, then token by token.
std::vector<Row> decode_plainly(const Case& c, Host& host, Random& random) {
    std::vector<Row> out;
    for (std::size_t t = 0; t < c.tokens.size();) {
        const std::size_t count = t < c.prompt ? c.prompt : 1;
        for (Row& row : host.step({chain(c, t, count)}, static_cast<int>(count), random)) out.push_back(std::move(row));
        host.accept(0, in_order(count));
        t += count;
    }
    return out;
}

// A tree whose branch `path` (rows of the window, at any places) holds tokens from `first` on; the rest is noise.
struct Tree {
    Lane lane;
    std::vector<int> path;
};

Tree make_tree(const Case& c, std::size_t first, std::size_t length, int nodes, std::int64_t committed,
               const std::vector<Row>& noise, Random& random) {
    std::vector<int> place(static_cast<std::size_t>(nodes));
    for (int k = 0; k < nodes; ++k) place[k] = k;
    std::shuffle(place.begin(), place.end(), random);
    Tree tree;
    tree.lane.rows.resize(place.size());
    tree.lane.positions.resize(place.size());
    tree.lane.sees.assign(place.size(), std::vector<bool>(place.size(), false));
    for (int k = 0; k < nodes; ++k) {
        const bool on_path = k < static_cast<int>(length);
        const int parent = on_path ? k - 1 : between(random, -1, k - 1);
        if (parent >= 0) tree.lane.sees[place[k]] = tree.lane.sees[place[parent]];
        tree.lane.positions[place[k]] = parent >= 0 ? tree.lane.positions[place[parent]] + 1 : committed;
        tree.lane.sees[place[k]][place[k]] = true;
        tree.lane.rows[place[k]] = on_path ? &c.tokens[first + k] : &noise[random() % noise.size()];
        if (on_path) tree.path.push_back(place[k]);
    }
    return tree;
}

bool same(const Row& a, const Row& b) { return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0; }

void compare_caches(const Case& c, const Host& truth, const Host& host, int lane) {
    for (int h = 0; h < c.node.shape.kv_heads; ++h) {
        for (std::size_t t = 0; t < c.tokens.size(); ++t) {
            const std::int64_t row = static_cast<std::int64_t>(t);
            if (std::memcmp(truth.key(0, h, row), host.key(lane, h, row), host.row_bytes()) != 0 ||
                std::memcmp(truth.value(0, h, row), host.value(lane, h, row), host.row_bytes()) != 0) {
                fail(c, "cache row " + std::to_string(t) + " differs");
            }
        }
    }
}

// Other sequences of the batch: noise of any length, sometimes nothing at all.
Lane neighbour(const Host& host, int b, int width, const Case& c, const std::vector<Row>& noise, Random& random) {
    Lane lane;
    const int room = static_cast<int>(c.capacity - host.lengths[static_cast<std::size_t>(b)]);
    for (int k = between(random, 0, std::min(width, room)); k > 0; --k)
        lane.rows.push_back(&noise[random() % noise.size()]);
    return lane;
}

// The tokens of `c` again, in windows and trees of any kind.
void decode_variously(const Case& c, const std::vector<Row>& expected, const Host& truth, Host& host,
                      const std::string& how, Random& random) {
    std::vector<Row> noise;
    for (int k = 0; k < 8; ++k) noise.push_back(make_row(c.node, random));
    const int own = between(random, 0, host.batch() - 1);
    for (std::size_t t = 0; t < c.tokens.size();) {
        const std::size_t left = c.tokens.size() - t;
        const int most = t < c.prompt && random() % 2 ? static_cast<int>(std::min<std::size_t>(left, 520)) : 16;
        const int length =
            static_cast<int>(std::min<std::size_t>(left, static_cast<std::size_t>(between(random, 1, most))));
        Tree tree{chain(c, t, static_cast<std::size_t>(length)), in_order(static_cast<std::size_t>(length))};
        if (most == 16 && random() % 2) {
            tree = make_tree(c, t, static_cast<std::size_t>(length), between(random, length, 20), host.lengths[own],
                             noise, random);
        }
        const int width = static_cast<int>(tree.lane.rows.size()) + between(random, 0, 3);
        std::vector<Lane> lanes;
        for (int b = 0; b < host.batch(); ++b) {
            lanes.push_back(b == own ? tree.lane : neighbour(host, b, width, c, noise, random));
        }
        const std::vector<Row> out = host.step(lanes, width, random);
        for (int k = 0; k < length; ++k) {
            if (!same(out[static_cast<std::size_t>(own * width + tree.path[k])], expected[t + k])) {
                fail(c, how + ": token " + std::to_string(t + k) + " differs, width " + std::to_string(width));
            }
        }
        for (int i = static_cast<int>(tree.lane.rows.size()); i < width; ++i) {
            for (float x : out[static_cast<std::size_t>(own * width + i)]) {
                if (x != 0) fail(c, how + ": padding is not zero");
            }
        }
        tree.path.resize(static_cast<std::size_t>(between(random, 1, length)));
        for (int b = 0; b < host.batch(); ++b) {
            host.accept(b, b == own ? tree.path : in_order(random() % (lanes[b].rows.size() + 1)));
        }
        t += tree.path.size();
    }
    compare_caches(c, truth, host, own);
}

void check_reference(const Case& c, const std::vector<Row>& out, const Host& host, double* worst) {
    const int size = c.node.shape.head_size;
    for (std::size_t t = 0; t < c.tokens.size(); t += 1 + c.tokens.size() / 7) {
        for (int head = 0; head < c.node.shape.heads; ++head) {
            const Reference wanted = reference(c.node, host, c.tokens[t], static_cast<std::int64_t>(t), head);
            for (int d = 0; d < size; ++d) {
                const double error = std::fabs(out[t][static_cast<std::size_t>(head * size + d)] - wanted.out[d]);
                *worst = std::max(*worst, error);
                if (!(error <= wanted.tolerance)) {
                    fail(c, "token " + std::to_string(t) + " is off by " + std::to_string(error));
                }
            }
        }
    }
}

std::uint64_t digest_of(const std::vector<Row>& rows, std::uint64_t digest) {
    for (const Row& row : rows) {
        for (float x : row) {
            std::uint32_t bits;
            std::memcpy(&bits, &x, sizeof bits);
            digest = (digest ^ bits) * 0x100000001b3u;
        }
    }
    return digest;
}

std::vector<const Path*> paths_here() {
    std::vector<const Path*> paths;
    std::size_t count = 0;
    const char* const* names = path_names(&count);
    for (std::size_t k = 0; k < count; ++k) {
        std::string error;
        const Path* path = select_path(names[k], &error);
        if (path != nullptr && path->attention != nullptr) paths.push_back(path);
    }
    return paths;
}

}  // namespace

int main(int argc, char** argv) {
    const double seconds = argc > 1 ? std::atof(argv[1]) : 5;
    const std::uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
    const int most_threads = argc > 3 ? std::atoi(argv[3]) : 3;
    const int most_cases = argc > 4 ? std::atoi(argv[4]) : INT32_MAX;
    const std::vector<const Path*> paths = paths_here();
    if (paths.empty()) {
        std::printf("no path runs on this host\n");
        return 77;
    }
    std::vector<std::unique_ptr<tests::Threads>> pools;
    for (int k = 1; k <= most_threads; ++k) pools.push_back(std::make_unique<tests::Threads>(k));
    const auto start = std::chrono::steady_clock::now();
    int cases = 0;
    std::uint64_t digest = 0xcbf29ce484222325u;
    double worst[2] = {0, 0};
    const auto passed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
    while (cases < most_cases && passed() < seconds) {
        Random random(seed + static_cast<std::uint64_t>(cases));
        const Case c = make_case(random);
        if (const char* refusal = refuse_shape(c.node.shape)) fail(c, refusal);
        Host truth(c.node, 1, c.capacity, *paths[0]->attention, Pool{});
        const std::vector<Row> expected = decode_plainly(c, truth, random);
        digest = digest_of(expected, digest);
        check_reference(c, expected, truth, &worst[c.node.shape.cache == CacheType::int8]);
        for (const Path* path : paths) {
            const std::size_t threads = random() % pools.size();
            const int batch = random() % 2 ? 4 : 1;
            Host host(c.node, batch, c.capacity, *path->attention, pools[threads]->pool());
            decode_variously(c, expected, truth, host,
                             std::string(path->name) + ", case " + std::to_string(cases) + ", threads " +
                                 std::to_string(threads + 1) + ", batch " + std::to_string(batch),
                             random);
        }
        ++cases;
    }
    std::printf("%d nodes on %zu paths (", cases, paths.size());
    for (const Path* path : paths) std::printf("%s%s", path->name, path == paths.back() ? "" : " ");
    std::printf("): equal bits; worst error fp32 %.2g, int8 cache %.2g; digest %016llx\n", worst[0], worst[1],
                static_cast<unsigned long long>(digest));
    return 0;
}
