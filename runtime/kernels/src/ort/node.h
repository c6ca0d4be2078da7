// Reading a node: attributes and constants when a kernel is made, tensors when it runs, and how a mistake is reported.
//
// Inside the glue a mistake is a `Refusal`; `answer` turns it into a status of ONNX Runtime, so no exception ever
// crosses the C boundary.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <new>
#include <optional>
#include <string>

#include "ort/ort_api.h"
#include "parallel.h"

namespace specruntime::ort {

// A mistake in a node or in what it was given, in one line.
class Refusal : public std::exception {
public:
    explicit Refusal(std::string words) : words_(std::move(words)) {}
    const char* what() const noexcept override { return words_.c_str(); }

private:
    std::string words_;
};

// A failed call of ONNX Runtime; its status is handed on as it is.
struct Failure {
    OrtStatus* status;
};

// Throw where a call of ONNX Runtime failed.
inline void require(OrtStatus* status) {
    if (status != nullptr) throw Failure{status};
}

// Run `work` and return its failure as a status: null where all went well.
template <typename Work>
OrtStatus* answer(const Api& api, Work&& work) noexcept {
    try {
        work();
        return nullptr;
    } catch (const Refusal& refusal) {
        return api.create_status(kInvalidArgument, refusal.what());
    } catch (const Failure& failure) {
        return failure.status;
    } catch (const std::bad_alloc&) {
        return api.create_status(kFail, "bad_alloc: no memory for a kernel of specruntime-kernels");
    } catch (const std::exception& error) {
        return api.create_status(kFail, error.what());
    }
}

constexpr size_t kMaxRank = 8;

// Sizes of a tensor; more than kMaxRank dimensions are refused where they are read.
struct Sizes {
    std::array<int64_t, kMaxRank> at{};
    size_t rank = 0;

    int64_t operator[](size_t axis) const { return at[axis]; }
    int64_t last() const { return at[rank - 1]; }
    int64_t count() const;
    bool is(std::initializer_list<int64_t> expected) const;  // -1 stands for any size
    std::string words() const;                               // [1, 6, 576]
};

// A tensor that ONNX Runtime owns. `data` is null for an input that the node leaves out.
struct Tensor {
    void* data = nullptr;
    int type = kUndefined;
    Sizes sizes;

    explicit operator bool() const { return data != nullptr; }
    template <typename T>
    const T* as() const {
        return static_cast<const T*>(data);
    }
    size_t bytes() const;
};

// Name of an element type, and its size in bytes (0 for one that no operator here takes).
const char* type_name(int type);
size_t type_bytes(int type);

// What a node says of itself, read when its kernel is made. Each reader throws a Refusal that names node and key.
class Node {
public:
    Node(const Api& api, const OrtKernelInfo* info, const char* op);

    int64_t integer(const char* key, std::optional<int64_t> otherwise = std::nullopt) const;
    bool flag(const char* key) const;  // 0 or 1, absent: 0
    float real(const char* key, float otherwise) const;
    std::string word(const char* key, std::optional<std::string> otherwise = std::nullopt) const;
    // An input that must be an initializer; its memory lives as long as the session.
    Tensor constant(size_t index, const char* input) const;

    [[noreturn]] void refuse(const std::string& words) const;
    const std::string& label() const { return label_; }

private:
    bool has_other_type(const char* key) const;

    const Api& api_;
    const OrtKernelInfo* info_;
    std::string label_;
};

// The tensors and the thread pool of one run.
class Run {
public:
    Run(const Api& api, OrtKernelContext* context, const std::string& label)
        : api_(api), context_(context), label_(label) {}

    Tensor input(size_t index) const;  // without data where the node leaves it out
    Tensor required(size_t index, const char* name, ElementType type) const;
    Tensor optional(size_t index, const char* name, ElementType type) const;
    Tensor output(size_t index, const Sizes& sizes) const;
    // The session's own threads. A failure of the pool or of a part is kept and thrown by `finish`.
    Pool pool();
    void finish();

    [[noreturn]] void refuse(const std::string& words) const;

private:
    Tensor view(OrtValue* value) const;
    void check_type(const Tensor& tensor, const char* name, ElementType type) const;
    static void spread(void* self, size_t parts, void (*part)(void* job, size_t index), void* job);

    const Api& api_;
    OrtKernelContext* context_;
    const std::string& label_;
    OrtStatus* failed_ = nullptr;
    bool short_of_memory_ = false;
};

}  // namespace specruntime::ort
