#include "ort/node.h"

#include <atomic>
#include <initializer_list>
#include <utility>

namespace specruntime::ort {

int64_t Sizes::count() const {
    int64_t product = 1;
    for (size_t axis = 0; axis < rank; ++axis) product *= at[axis];
    return product;
}

bool Sizes::is(std::initializer_list<int64_t> expected) const {
    if (expected.size() != rank) return false;
    size_t axis = 0;
    for (int64_t size : expected) {
        if (size >= 0 && at[axis] != size) return false;
        ++axis;
    }
    return true;
}

std::string Sizes::words() const {
    std::string text = "[";
    for (size_t axis = 0; axis < rank; ++axis) {
        if (axis > 0) text += ", ";
        text += std::to_string(at[axis]);
    }
    return text + "]";
}

const char* type_name(int type) {
    switch (type) {
        case kFloat:
            return "float32";
        case kUint8:
            return "uint8";
        case kInt8:
            return "int8";
        case kInt32:
            return "int32";
        case kInt64:
            return "int64";
        case kBool:
            return "bool";
        default:
            return "another type";
    }
}

size_t type_bytes(int type) {
    switch (type) {
        case kFloat:
        case kInt32:
            return 4;
        case kInt64:
            return 8;
        case kUint8:
        case kInt8:
        case kBool:
            return 1;
        default:
            return 0;
    }
}

size_t Tensor::bytes() const { return static_cast<size_t>(sizes.count()) * type_bytes(type); }

namespace {

// Type and sizes of a tensor; releases what ONNX Runtime made for the question.
void read_shape(const Api& api, OrtTensorTypeAndShapeInfo* shape, int* type, Sizes* sizes) {
    require(api.element_type(shape, type));
    size_t rank = 0;
    require(api.rank(shape, &rank));
    if (rank > kMaxRank) throw Refusal("a tensor has " + std::to_string(rank) + " dimensions, expected at most 8");
    sizes->rank = rank;
    require(api.sizes(shape, sizes->at.data(), rank));
}

class OwnedShape {
public:
    explicit OwnedShape(const Api& api) : api_(api) {}
    ~OwnedShape() {
        if (shape != nullptr) api_.release_shape(shape);
    }
    OwnedShape(const OwnedShape&) = delete;
    OwnedShape& operator=(const OwnedShape&) = delete;

    OrtTensorTypeAndShapeInfo* shape = nullptr;

private:
    const Api& api_;
};

Tensor view_of(const Api& api, OrtValue* value) {
    Tensor tensor;
    OwnedShape owned(api);
    require(api.type_and_shape(value, &owned.shape));
    read_shape(api, owned.shape, &tensor.type, &tensor.sizes);
    require(api.data(value, &tensor.data));
    static char nothing;  // a tensor without elements may have no memory, and is still there
    if (tensor.data == nullptr) tensor.data = &nothing;
    return tensor;
}

}  // namespace

Node::Node(const Api& api, const OrtKernelInfo* info, const char* op) : api_(api), info_(info), label_(op) {
    size_t size = 0;
    if (OrtStatus* status = api.node_name(info, nullptr, &size)) {
        api.release_status(status);
        return;
    }
    std::string name(size, '\0');
    if (OrtStatus* status = api.node_name(info, name.data(), &size)) {
        api.release_status(status);
        return;
    }
    name.resize(size > 0 ? size - 1 : 0);
    if (!name.empty()) label_ += " " + name;
}

void Node::refuse(const std::string& words) const { throw Refusal(label_ + ": " + words); }

bool Node::has_other_type(const char* key) const {
    int64_t integer = 0;
    float real = 0;
    size_t size = 0;
    OrtStatus* tried[] = {
        api_.attribute_int(info_, key, &integer),
        api_.attribute_float(info_, key, &real),
        api_.attribute_string(info_, key, nullptr, &size),
    };
    bool found = false;
    for (OrtStatus* status : tried) {
        found = found || status == nullptr;
        if (status != nullptr) api_.release_status(status);
    }
    return found;
}

int64_t Node::integer(const char* key, std::optional<int64_t> otherwise) const {
    int64_t value = 0;
    OrtStatus* status = api_.attribute_int(info_, key, &value);
    if (status == nullptr) return value;
    api_.release_status(status);
    if (has_other_type(key)) refuse(std::string("attribute ") + key + " has another type, expected an integer");
    if (!otherwise) refuse(std::string("attribute ") + key + " is missing");
    return *otherwise;
}

bool Node::flag(const char* key) const {
    int64_t value = integer(key, 0);
    if (value != 0 && value != 1) {
        refuse(std::string("attribute ") + key + " is " + std::to_string(value) + ", expected 0 or 1");
    }
    return value == 1;
}

float Node::real(const char* key, float otherwise) const {
    float value = 0;
    OrtStatus* status = api_.attribute_float(info_, key, &value);
    if (status == nullptr) return value;
    api_.release_status(status);
    if (has_other_type(key)) refuse(std::string("attribute ") + key + " has another type, expected a float");
    return otherwise;
}

std::string Node::word(const char* key, std::optional<std::string> otherwise) const {
    size_t size = 0;
    OrtStatus* status = api_.attribute_string(info_, key, nullptr, &size);
    if (status != nullptr) {
        api_.release_status(status);
        if (has_other_type(key)) refuse(std::string("attribute ") + key + " has another type, expected a string");
        if (!otherwise) refuse(std::string("attribute ") + key + " is missing");
        return *otherwise;
    }
    std::string text(size, '\0');
    require(api_.attribute_string(info_, key, text.data(), &size));
    text.resize(size > 0 ? size - 1 : 0);  // the count includes the final zero
    return text;
}

Tensor Node::constant(size_t index, const char* input) const {
    size_t count = 0;
    require(api_.info_input_count(info_, &count));
    int is_constant = 0;
    const OrtValue* value = nullptr;
    if (index < count) require(api_.constant_input(info_, index, &is_constant, &value));
    if (!is_constant || value == nullptr) {
        refuse(std::string(input) + " is not an initializer; packed weights are read in place");
    }
    return view_of(api_, const_cast<OrtValue*>(value));
}

Tensor Run::view(OrtValue* value) const { return view_of(api_, value); }

Tensor Run::input(size_t index) const {
    size_t count = 0;
    require(api_.input_count(context_, &count));
    const OrtValue* value = nullptr;
    if (index < count) require(api_.input(context_, index, &value));
    return value == nullptr ? Tensor() : view(const_cast<OrtValue*>(value));
}

void Run::check_type(const Tensor& tensor, const char* name, ElementType type) const {
    if (tensor.type != type) {
        refuse(std::string(name) + " has type " + type_name(tensor.type) + ", expected " + type_name(type));
    }
}

Tensor Run::required(size_t index, const char* name, ElementType type) const {
    Tensor tensor = input(index);
    if (!tensor) refuse(std::string(name) + " is missing");
    check_type(tensor, name, type);
    return tensor;
}

Tensor Run::optional(size_t index, const char* name, ElementType type) const {
    Tensor tensor = input(index);
    if (tensor) check_type(tensor, name, type);
    return tensor;
}

Tensor Run::output(size_t index, const Sizes& sizes) const {
    OrtValue* value = nullptr;
    require(api_.output(context_, index, sizes.at.data(), sizes.rank, &value));
    Tensor tensor;
    if (value == nullptr) return tensor;
    require(api_.data(value, &tensor.data));
    tensor.sizes = sizes;
    return tensor;
}

Pool Run::pool() { return Pool{&Run::spread, this}; }

namespace {

// A job whose parts may run out of memory: no exception may leave a function that ONNX Runtime's threads call.
struct GuardedJob {
    void (*part)(void* job, size_t index);
    void* job;
    std::atomic<bool> short_of_memory;

    static void run(void* self, size_t index) noexcept {
        GuardedJob& guarded = *static_cast<GuardedJob*>(self);
        try {
            guarded.part(guarded.job, index);
        } catch (const std::bad_alloc&) {
            guarded.short_of_memory.store(true, std::memory_order_relaxed);
        }
    }
};

}  // namespace

void Run::spread(void* self, size_t parts, void (*part)(void* job, size_t index), void* job) {
    Run& run = *static_cast<Run*>(self);
    GuardedJob guarded{part, job, {false}};
    OrtStatus* status = run.api_.parallel_for(run.context_, &GuardedJob::run, parts, 0, &guarded);
    if (guarded.short_of_memory.load()) run.short_of_memory_ = true;
    if (status == nullptr) return;
    if (run.failed_ != nullptr) run.api_.release_status(run.failed_);
    run.failed_ = status;
}

void Run::finish() {
    require(std::exchange(failed_, nullptr));
    if (short_of_memory_) throw std::bad_alloc();
}

void Run::refuse(const std::string& words) const { throw Refusal(label_ + ": " + words); }

}  // namespace specruntime::ort
