// WindowEmbedding: ids int64 [...], packed weights -> float32 [..., K], rows of the matrix that WindowMatMul reads.
#include "ort/node.h"
#include "ort/operators.h"
#include "ort/packed.h"

namespace specruntime::ort {

namespace {

constexpr const char* kName = "WindowEmbedding";

class Kernel {
public:
    Kernel(const Operator& op, const OrtKernelInfo* info) : api_(op.api), path_(*op.path) {
        const Node node(api_, info, kName);
        label_ = node.label();
        matrix_ = read_matrix(node, 1);
        if (matrix_.activation != Activation::none) node.refuse("attribute activation is set, expected none");
    }

    const Api& api() const { return api_; }

    void run(OrtKernelContext* context) {
        Run run(api_, context, label_);
        const Tensor ids = run.required(0, "ids", kInt64);
        Sizes sizes = ids.sizes;
        if (sizes.rank >= kMaxRank) run.refuse("ids have shape " + sizes.words() + ", expected at most 7 dimensions");
        sizes.at[sizes.rank++] = matrix_.inputs;
        const Tensor y = run.output(0, sizes);
        const int64_t count = ids.sizes.count();
        if (count == 0) return;
        const std::string problem =
            window_embedding(path_, matrix_, ids.as<int64_t>(), count, static_cast<float*>(y.data), run.pool());
        if (!problem.empty()) run.refuse(problem);
        run.finish();
    }

private:
    Api api_;
    const Path& path_;
    std::string label_;
    PackedMatrix matrix_;
};

}  // namespace

void describe_embedding(Operator& op) {
    op.GetName = [](const OrtCustomOp*) { return kName; };
    op.GetInputTypeCount = [](const OrtCustomOp*) -> size_t { return 2; };
    op.GetOutputTypeCount = [](const OrtCustomOp*) -> size_t { return 1; };
    op.GetInputType = [](const OrtCustomOp*, size_t index) -> int { return index == 1 ? kUint8 : kInt64; };
    op.GetOutputType = [](const OrtCustomOp*, size_t) -> int { return kFloat; };
    serve<Kernel>(op);
}

}  // namespace specruntime::ort
