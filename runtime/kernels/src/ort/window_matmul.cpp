// WindowMatMul: X float32 [..., K], packed weights, bias float32 [N] (optional) -> float32 [..., N], or [..., N/2]
// where an activation gates one half with the other.
#include "ort/node.h"
#include "ort/operators.h"
#include "ort/packed.h"

namespace specruntime::ort {

namespace {

constexpr const char* kName = "WindowMatMul";

class Kernel {
public:
    Kernel(const Operator& op, const OrtKernelInfo* info) : api_(op.api), path_(*op.path) {
        const Node node(api_, info, kName);
        label_ = node.label();
        matrix_ = read_matrix(node, 1);
    }

    const Api& api() const { return api_; }

    void run(OrtKernelContext* context) {
        Run run(api_, context, label_);
        const Tensor x = run.required(0, "X", kFloat);
        if (x.sizes.rank < 1 || x.sizes.last() != matrix_.inputs) {
            run.refuse("X has shape " + x.sizes.words() + ", expected [..., " + std::to_string(matrix_.inputs) + "]");
        }
        const Tensor bias = run.optional(2, "bias", kFloat);
        if (bias && !bias.sizes.is({matrix_.outputs})) {
            run.refuse("bias has shape " + bias.sizes.words() + ", expected [" + std::to_string(matrix_.outputs) + "]");
        }
        Sizes sizes = x.sizes;
        sizes.at[sizes.rank - 1] = results(matrix_);
        const Tensor y = run.output(0, sizes);
        const int64_t rows = x.sizes.count() / matrix_.inputs;
        if (rows == 0) return;
        window_matmul(path_, matrix_, x.as<float>(), rows, static_cast<float*>(y.data), bias.as<float>(), scratch_,
                      run.pool());
        run.finish();
    }

private:
    Api api_;
    const Path& path_;
    std::string label_;
    PackedMatrix matrix_;
    ScratchPool scratch_;
};

}  // namespace

void describe_matmul(Operator& op) {
    op.GetName = [](const OrtCustomOp*) { return kName; };
    op.GetInputTypeCount = [](const OrtCustomOp*) -> size_t { return 3; };
    op.GetOutputTypeCount = [](const OrtCustomOp*) -> size_t { return 1; };
    op.GetInputType = [](const OrtCustomOp*, size_t index) -> int { return index == 1 ? kUint8 : kFloat; };
    op.GetInputCharacteristic = [](const OrtCustomOp*, size_t index) -> int {
        return index == 2 ? kOptional : kRequired;
    };
    op.GetOutputType = [](const OrtCustomOp*, size_t) -> int { return kFloat; };
    serve<Kernel>(op);
}

}  // namespace specruntime::ort
