// What a host may ask the shared library without ONNX Runtime; Python does so by ctypes.
#include <cstring>
#include <string>

#include "dispatch.h"
#include "matmul/matmul.h"
#include "ort/ort_api.h"

#ifndef SPECRUNTIME_KERNELS_VERSION
#define SPECRUNTIME_KERNELS_VERSION "0.0.0"
#endif

namespace {

void copy_words(const std::string& words, char* out, size_t size) {
    if (out == nullptr || size == 0) return;
    const size_t count = words.size() < size - 1 ? words.size() : size - 1;
    std::memcpy(out, words.data(), count);
    out[count] = '\0';
}

}  // namespace

extern "C" {

SPECRUNTIME_EXPORT const char* specruntime_kernels_version() { return SPECRUNTIME_KERNELS_VERSION; }

// Version of the operators' attributes, inputs and arithmetic.
SPECRUNTIME_EXPORT int specruntime_kernels_operators() { return 1; }

// Version of the packed weights.
SPECRUNTIME_EXPORT int specruntime_kernels_layout() { return specruntime::kLayoutVersion; }

// Name of the index-th path, preferred ones first; null past the last one.
SPECRUNTIME_EXPORT const char* specruntime_kernels_path(size_t index) {
    size_t count = 0;
    const char* const* names = specruntime::path_names(&count);
    return index < count ? names[index] : nullptr;
}

// The path that `name` stands for on this processor, "" for the best one; null where it cannot run, and the reason in
// `reason` of `size` bytes.
SPECRUNTIME_EXPORT const char* specruntime_kernels_select(const char* name, char* reason, size_t size) {
    try {
        std::string words;
        const specruntime::Path* path = specruntime::select_path(name, &words);
        if (path != nullptr) return path->name;
        copy_words(words, reason, size);
    } catch (const std::exception& error) {
        copy_words(error.what(), reason, size);
    }
    return nullptr;
}
}
