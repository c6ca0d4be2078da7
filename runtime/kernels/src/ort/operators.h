// The operators of domain `specruntime`: each file describes one to ONNX Runtime. None infers shapes: ONNX Runtime's
// shape functions do not allow for an optional input that is left out, and graphs may carry the shapes themselves.
#pragma once

#include <memory>

#include "dispatch.h"
#include "ort/node.h"
#include "ort/ort_api.h"

namespace specruntime::ort {

// An operator on one path. ONNX Runtime hands it to the function that makes kernels; it must outlive every session.
struct Operator : OrtCustomOp {
    Api api;
    const Path* path = nullptr;
};

enum class CacheElement { fp32, int8 };

// Fill in an operator that `blank` made.
void describe_matmul(Operator& op);
void describe_embedding(Operator& op);
void describe_attention(Operator& op, CacheElement cache);

// An operator with what all of them have in common.
Operator blank(const Api& api, const Path& path);

// Let objects of class Kernel serve the operator: made by Kernel(const Operator&, const OrtKernelInfo*), run by
// run(OrtKernelContext*), which several threads may call at once.
template <typename Kernel>
void serve(Operator& op) {
    op.CreateKernelV2 = [](const OrtCustomOp* op, const void* const*, const OrtKernelInfo* info, void** out) {
        const Operator& self = *static_cast<const Operator*>(op);
        return answer(self.api, [&] { *out = std::make_unique<Kernel>(self, info).release(); });
    };
    op.KernelComputeV2 = [](void* kernel, OrtKernelContext* context) {
        Kernel& self = *static_cast<Kernel*>(kernel);
        return answer(self.api(), [&] { self.run(context); });
    };
    op.KernelDestroy = [](void* kernel) { delete static_cast<Kernel*>(kernel); };
}

}  // namespace specruntime::ort
