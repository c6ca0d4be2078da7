// The part of ONNX Runtime's C API that the operators use, declared here because no package ships the public header.
//
// The library hands out its functions as one table of pointers. Entries are appended to it from version to version and
// never moved or removed, so each has a fixed index. `kApiVersion` is the lowest version that has all entries below.
// Strings, statuses and handles are opaque; the layout of OrtCustomOp is read by ONNX Runtime up to its `version`.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(_WIN32)
#define ORT_CALL __stdcall
#define SPECRUNTIME_EXPORT __declspec(dllexport)
#else
#define ORT_CALL
#define SPECRUNTIME_EXPORT __attribute__((visibility("default")))
#endif

struct OrtStatus;
struct OrtValue;
struct OrtKernelInfo;
struct OrtKernelContext;
struct OrtSessionOptions;
struct OrtCustomOpDomain;
struct OrtTensorTypeAndShapeInfo;
struct OrtShapeInferContext;
struct OrtCustomOp;

namespace specruntime::ort {

constexpr uint32_t kApiVersion = 17;  // the first one with KernelContext_ParallelFor

enum ErrorCode { kFail = 1, kInvalidArgument = 2 };

enum ElementType : int {
    kUndefined = 0,
    kFloat = 1,
    kUint8 = 2,
    kInt8 = 3,
    kInt32 = 6,
    kInt64 = 7,
    kBool = 9,
};

enum Characteristic { kRequired = 0, kOptional = 1 };

// Position of each entry in the table.
enum Entry : size_t {
    kCreateStatus = 0,
    kCreateCustomOpDomain = 26,
    kCustomOpDomainAdd = 27,
    kAddCustomOpDomain = 28,
    kGetTensorMutableData = 51,
    kGetTensorElementType = 60,
    kGetDimensionsCount = 61,
    kGetDimensions = 62,
    kGetTensorTypeAndShape = 65,
    kKernelInfoGetAttributeFloat = 85,
    kKernelInfoGetAttributeInt64 = 86,
    kKernelInfoGetAttributeString = 87,
    kKernelContextGetInputCount = 88,
    kKernelContextGetInput = 90,
    kKernelContextGetOutput = 91,
    kReleaseStatus = 93,
    kReleaseTensorTypeAndShapeInfo = 99,
    kKernelInfoGetInputCount = 230,
    kHasSessionConfigEntry = 237,
    kGetSessionConfigEntry = 238,
    kKernelInfoGetNodeName = 244,
    kKernelInfoGetConstantInputTensor = 249,
    kKernelContextParallelFor = 274,
};

template <typename... Arguments>
using StatusFunction = OrtStatus*(ORT_CALL*)(Arguments...);

// A view of the table with one typed function an entry.
class Api {
public:
    Api() = default;
    explicit Api(const void* const* table) : table_(table) {}
    explicit operator bool() const { return table_ != nullptr; }

    OrtStatus* create_status(ErrorCode code, const char* words) const {
        return at<OrtStatus*(ORT_CALL*)(int, const char*)>(kCreateStatus)(code, words);
    }
    void release_status(OrtStatus* status) const { at<void(ORT_CALL*)(OrtStatus*)>(kReleaseStatus)(status); }

    OrtStatus* create_domain(const char* name, OrtCustomOpDomain** out) const {
        using Function = StatusFunction<const char*, OrtCustomOpDomain**>;
        return at<Function>(kCreateCustomOpDomain)(name, out);
    }
    OrtStatus* domain_add(OrtCustomOpDomain* domain, const OrtCustomOp* op) const {
        using Function = StatusFunction<OrtCustomOpDomain*, const OrtCustomOp*>;
        return at<Function>(kCustomOpDomainAdd)(domain, op);
    }
    OrtStatus* add_domain(OrtSessionOptions* options, OrtCustomOpDomain* domain) const {
        using Function = StatusFunction<OrtSessionOptions*, OrtCustomOpDomain*>;
        return at<Function>(kAddCustomOpDomain)(options, domain);
    }
    OrtStatus* has_config(const OrtSessionOptions* options, const char* key, int* out) const {
        using Function = StatusFunction<const OrtSessionOptions*, const char*, int*>;
        return at<Function>(kHasSessionConfigEntry)(options, key, out);
    }
    OrtStatus* get_config(const OrtSessionOptions* options, const char* key, char* value, size_t* size) const {
        using Function = StatusFunction<const OrtSessionOptions*, const char*, char*, size_t*>;
        return at<Function>(kGetSessionConfigEntry)(options, key, value, size);
    }

    OrtStatus* attribute_float(const OrtKernelInfo* info, const char* name, float* out) const {
        using Function = StatusFunction<const OrtKernelInfo*, const char*, float*>;
        return at<Function>(kKernelInfoGetAttributeFloat)(info, name, out);
    }
    OrtStatus* attribute_int(const OrtKernelInfo* info, const char* name, int64_t* out) const {
        using Function = StatusFunction<const OrtKernelInfo*, const char*, int64_t*>;
        return at<Function>(kKernelInfoGetAttributeInt64)(info, name, out);
    }
    OrtStatus* attribute_string(const OrtKernelInfo* info, const char* name, char* out, size_t* size) const {
        using Function = StatusFunction<const OrtKernelInfo*, const char*, char*, size_t*>;
        return at<Function>(kKernelInfoGetAttributeString)(info, name, out, size);
    }
    OrtStatus* node_name(const OrtKernelInfo* info, char* out, size_t* size) const {
        using Function = StatusFunction<const OrtKernelInfo*, char*, size_t*>;
        return at<Function>(kKernelInfoGetNodeName)(info, out, size);
    }
    OrtStatus* info_input_count(const OrtKernelInfo* info, size_t* out) const {
        using Function = StatusFunction<const OrtKernelInfo*, size_t*>;
        return at<Function>(kKernelInfoGetInputCount)(info, out);
    }
    OrtStatus* constant_input(const OrtKernelInfo* info, size_t index, int* is_constant, const OrtValue** out) const {
        using Function = StatusFunction<const OrtKernelInfo*, size_t, int*, const OrtValue**>;
        return at<Function>(kKernelInfoGetConstantInputTensor)(info, index, is_constant, out);
    }

    OrtStatus* input_count(const OrtKernelContext* context, size_t* out) const {
        using Function = StatusFunction<const OrtKernelContext*, size_t*>;
        return at<Function>(kKernelContextGetInputCount)(context, out);
    }
    OrtStatus* input(const OrtKernelContext* context, size_t index, const OrtValue** out) const {
        using Function = StatusFunction<const OrtKernelContext*, size_t, const OrtValue**>;
        return at<Function>(kKernelContextGetInput)(context, index, out);
    }
    OrtStatus* output(OrtKernelContext* context, size_t index, const int64_t* sizes, size_t rank,
                      OrtValue** out) const {
        using Function = StatusFunction<OrtKernelContext*, size_t, const int64_t*, size_t, OrtValue**>;
        return at<Function>(kKernelContextGetOutput)(context, index, sizes, rank, out);
    }
    OrtStatus* parallel_for(const OrtKernelContext* context, void (*part)(void*, size_t), size_t total, size_t batches,
                            void* job) const {
        using Function = StatusFunction<const OrtKernelContext*, void (*)(void*, size_t), size_t, size_t, void*>;
        return at<Function>(kKernelContextParallelFor)(context, part, total, batches, job);
    }

    OrtStatus* data(OrtValue* value, void** out) const {
        using Function = StatusFunction<OrtValue*, void**>;
        return at<Function>(kGetTensorMutableData)(value, out);
    }
    OrtStatus* type_and_shape(const OrtValue* value, OrtTensorTypeAndShapeInfo** out) const {
        using Function = StatusFunction<const OrtValue*, OrtTensorTypeAndShapeInfo**>;
        return at<Function>(kGetTensorTypeAndShape)(value, out);
    }
    void release_shape(OrtTensorTypeAndShapeInfo* shape) const {
        at<void(ORT_CALL*)(OrtTensorTypeAndShapeInfo*)>(kReleaseTensorTypeAndShapeInfo)(shape);
    }
    OrtStatus* element_type(const OrtTensorTypeAndShapeInfo* shape, int* out) const {
        using Function = StatusFunction<const OrtTensorTypeAndShapeInfo*, int*>;
        return at<Function>(kGetTensorElementType)(shape, out);
    }
    OrtStatus* rank(const OrtTensorTypeAndShapeInfo* shape, size_t* out) const {
        using Function = StatusFunction<const OrtTensorTypeAndShapeInfo*, size_t*>;
        return at<Function>(kGetDimensionsCount)(shape, out);
    }
    OrtStatus* sizes(const OrtTensorTypeAndShapeInfo* shape, int64_t* out, size_t rank) const {
        using Function = StatusFunction<const OrtTensorTypeAndShapeInfo*, int64_t*, size_t>;
        return at<Function>(kGetDimensions)(shape, out, rank);
    }

private:
    template <typename Function>
    Function at(Entry entry) const {
        return reinterpret_cast<Function>(const_cast<void*>(table_[entry]));
    }

    const void* const* table_ = nullptr;
};

}  // namespace specruntime::ort

// What the library hands to `RegisterCustomOps`; this struct never changes.
struct OrtApiBase {
    const void* const*(ORT_CALL* get_api)(uint32_t version);
    const char*(ORT_CALL* version)();
};

// One operator: its schema and the functions that make, run and free a kernel. Fields after those of `version` are not
// read; members are named as in the public header.
struct OrtCustomOp {
    uint32_t version;
    void*(ORT_CALL* CreateKernel)(const OrtCustomOp*, const void* const*, const OrtKernelInfo*);
    const char*(ORT_CALL* GetName)(const OrtCustomOp*);
    const char*(ORT_CALL* GetExecutionProviderType)(const OrtCustomOp*);
    int(ORT_CALL* GetInputType)(const OrtCustomOp*, size_t);
    size_t(ORT_CALL* GetInputTypeCount)(const OrtCustomOp*);
    int(ORT_CALL* GetOutputType)(const OrtCustomOp*, size_t);
    size_t(ORT_CALL* GetOutputTypeCount)(const OrtCustomOp*);
    void(ORT_CALL* KernelCompute)(void*, OrtKernelContext*);
    void(ORT_CALL* KernelDestroy)(void*);
    int(ORT_CALL* GetInputCharacteristic)(const OrtCustomOp*, size_t);
    int(ORT_CALL* GetOutputCharacteristic)(const OrtCustomOp*, size_t);
    int(ORT_CALL* GetInputMemoryType)(const OrtCustomOp*, size_t);
    int(ORT_CALL* GetVariadicInputMinArity)(const OrtCustomOp*);
    int(ORT_CALL* GetVariadicInputHomogeneity)(const OrtCustomOp*);
    int(ORT_CALL* GetVariadicOutputMinArity)(const OrtCustomOp*);
    int(ORT_CALL* GetVariadicOutputHomogeneity)(const OrtCustomOp*);
    OrtStatus*(ORT_CALL* CreateKernelV2)(const OrtCustomOp*, const void* const*, const OrtKernelInfo*, void**);
    OrtStatus*(ORT_CALL* KernelComputeV2)(void*, OrtKernelContext*);
    OrtStatus*(ORT_CALL* InferOutputShapeFn)(const OrtCustomOp*, OrtShapeInferContext*);
    int(ORT_CALL* GetStartVersion)(const OrtCustomOp*);
    int(ORT_CALL* GetEndVersion)(const OrtCustomOp*);
    // Of version 18: never set, but there for libraries that look past `version`.
    size_t(ORT_CALL* GetMayInplace)(int**, int**);
    void(ORT_CALL* ReleaseMayInplace)(int*, int*);
    size_t(ORT_CALL* GetAliasMap)(int**, int**);
    void(ORT_CALL* ReleaseAliasMap)(int*, int*);
};
