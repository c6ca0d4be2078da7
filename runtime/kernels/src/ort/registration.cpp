// The entry point that ONNX Runtime calls when a session's options name this library: adds domain `specruntime`.
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "dispatch.h"
#include "ort/node.h"
#include "ort/operators.h"
#include "ort/ort_api.h"

namespace specruntime::ort {

Operator blank(const Api& api, const Path& path) {
    Operator op{};
    op.version = kApiVersion;
    op.api = api;
    op.path = &path;
    op.GetExecutionProviderType = [](const OrtCustomOp*) -> const char* { return nullptr; };  // the CPU's
    op.GetInputCharacteristic = [](const OrtCustomOp*, size_t) -> int { return kRequired; };
    op.GetOutputCharacteristic = [](const OrtCustomOp*, size_t) -> int { return kRequired; };
    op.GetInputMemoryType = [](const OrtCustomOp*, size_t) { return 0; };
    op.GetVariadicInputMinArity = [](const OrtCustomOp*) { return 1; };
    op.GetVariadicInputHomogeneity = [](const OrtCustomOp*) { return 1; };
    op.GetVariadicOutputMinArity = [](const OrtCustomOp*) { return 1; };
    op.GetVariadicOutputHomogeneity = [](const OrtCustomOp*) { return 1; };
    op.GetStartVersion = [](const OrtCustomOp*) { return 1; };
    op.GetEndVersion = [](const OrtCustomOp*) { return 1000; };
    return op;
}

namespace {

constexpr const char* kPathKey = "specruntime.kernels";

// The operators of one path in one loaded ONNX Runtime. ONNX Runtime keeps pointers to them.
struct Domain {
    std::vector<std::unique_ptr<Operator>> operators;
    OrtCustomOpDomain* handle = nullptr;
};

std::unique_ptr<Domain> make_domain(const Api& api, const Path& path) {
    auto domain = std::make_unique<Domain>();
    const auto add = [&](auto&& describe) {
        domain->operators.push_back(std::make_unique<Operator>(blank(api, path)));
        describe(*domain->operators.back());
    };
    add(describe_matmul);
    add(describe_embedding);
    add([](Operator& op) { describe_attention(op, CacheElement::fp32); });
    add([](Operator& op) { describe_attention(op, CacheElement::int8); });
    require(api.create_domain("specruntime", &domain->handle));
    for (const auto& op : domain->operators) require(api.domain_add(domain->handle, op.get()));
    return domain;
}

// The domain of a path; made once and kept for the life of the process, since sessions may outlive every static object.
OrtCustomOpDomain* domain_of(const Api& api, const void* table, const Path& path) {
    using Key = std::pair<const void*, const Path*>;
    static auto& guard = *new std::mutex;
    static auto& domains = *new std::map<Key, std::unique_ptr<Domain>>;
    std::lock_guard<std::mutex> hold(guard);
    std::unique_ptr<Domain>& domain = domains[{table, &path}];
    if (domain == nullptr) domain = make_domain(api, path);
    return domain->handle;
}

// What the session asks for by config entry `specruntime.kernels`: a path's name, or "" for the best one.
std::string asked_path(const Api& api, const OrtSessionOptions* options) {
    int there = 0;
    require(api.has_config(options, kPathKey, &there));
    if (!there) return "";
    size_t size = 0;
    require(api.get_config(options, kPathKey, nullptr, &size));
    std::string name(size, '\0');
    require(api.get_config(options, kPathKey, name.data(), &size));
    name.resize(size > 0 ? size - 1 : 0);  // the count includes the final zero
    return name;
}

void add_operators(const Api& api, const void* table, OrtSessionOptions* options) {
    std::string problem;
    const Path* path = select_path(asked_path(api, options), &problem);
    if (path == nullptr) throw Refusal(problem);
    require(api.add_domain(options, domain_of(api, table, *path)));
}

}  // namespace

}  // namespace specruntime::ort

extern "C" SPECRUNTIME_EXPORT OrtStatus* ORT_CALL RegisterCustomOps(OrtSessionOptions* options,
                                                                    const OrtApiBase* base) {
    using namespace specruntime::ort;
    if (const void* const* table = base->get_api(kApiVersion)) {
        const Api api(table);
        return answer(api, [&] { add_operators(api, table, options); });
    }
    const Api oldest(base->get_api(1));  // has statuses
    const std::string words = std::string("this ONNX Runtime, ") + base->version() + ", lacks version " +
                              std::to_string(kApiVersion) + " of its C API: install 1.17 or newer";
    return oldest ? oldest.create_status(kFail, words.c_str()) : nullptr;
}
