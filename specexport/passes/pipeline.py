"""The pass lists: one that makes the graph a plan asks for, then ONNX Runtime's own."""

import onnx_ir as ir
from transformers.exporters.onnxruntime_fusions import fuse_for_onnxruntime

from specexport.export.trace import forget_graph
from specexport.graph.plan import PLAIN, GraphPlan, WindowPlan
from specexport.passes import FUSED_DOMAIN, GraphPass, PassReport, lacks_outputs
from specexport.passes.attention_rotary import RotateInAttention
from specexport.passes.fused_draft import FuseDraftSteps
from specexport.passes.group_query_attention import FlattenHeads, GroupQueryAttention, PackAttentionInputs
from specexport.passes.interface import DropHiddenStates, DropUnusedInputs, MakeFeatures
from specexport.passes.layer_path import AddDraftPath, KeepLayers, MergeEqualWeights, ShareHeadWeights
from specexport.passes.quantize_weights import QuantizeWeights
from specexport.passes.tree_bias import TreeBias
from specexport.passes.window_operators import AttendInWindows, MultiplyInWindows


def plan_passes(plan: GraphPlan) -> tuple[GraphPass, ...]:
    """Features, the path or choice of layers, fused steps; hidden states that no pass took are dropped."""
    passes: list[GraphPass] = []
    if plan.features is not None:
        passes.append(MakeFeatures(plan.features))
    if plan.draft_layers:
        passes.append(AddDraftPath(plan.draft_layers))
    if plan.kept_layers:
        passes.append(KeepLayers(plan.kept_layers))
    passes.append(DropHiddenStates())
    if plan.fused_steps:
        passes.append(FuseDraftSteps(plan.fused_steps))
    return tuple(passes)


class FuseOperators(GraphPass):
    """Norms, rotary embeddings and packed projections of com.microsoft where their patterns match."""

    name = "fuse-operators"

    def __init__(self, provider: str) -> None:
        self._provider = provider

    def requires(self, model: ir.Model) -> str | None:
        """Require standard operators: the patterns are those of a traced graph."""
        fused = next((node for node in model.graph if node.domain == FUSED_DOMAIN), None)
        return None if fused is None else f"{fused.name} is fused already"

    def ensures(self, model: ir.Model, report: PassReport) -> str | None:
        return lacks_outputs(model, *self._outputs)

    def __call__(self, model: ir.Model) -> PassReport:
        before, self._outputs = len(model.graph), [value.name or "" for value in model.graph.outputs]
        fuse_for_onnxruntime(model, self._provider)
        forget_graph()
        model.opset_imports.setdefault("com.microsoft", 1)
        changed = before - len(model.graph)
        return PassReport(self.name, changed, () if changed else ("no operator matched a fusion",))


def onnxruntime_passes(provider: str, plan: GraphPlan = PLAIN) -> tuple[GraphPass, ...]:
    """Return the passes for ONNX Runtime's `provider`: "cpu", "cuda" or "tensorrt" (which takes the canonical
    operators).

    Of the plan trees, weights and a draft path matter here: the canonical operators serve trees as they are.
    """
    if provider == "tensorrt":
        return (DropUnusedInputs(),)
    if plan.window is not None:
        return _window_passes(plan, plan.window)
    return (
        *((ShareHeadWeights(),) if plan.draft_layers else ()),
        FuseOperators(provider),
        GroupQueryAttention(),
        *((TreeBias(),) if plan.trees else ()),
        FlattenHeads(),
        RotateInAttention(),
        PackAttentionInputs(),
        *((QuantizeWeights(plan.weights),) if plan.weights is not None else ()),
        *((MergeEqualWeights(),) if plan.draft_layers else ()),
        DropUnusedInputs(),
    )


def _window_passes(plan: GraphPlan, window: WindowPlan) -> tuple[GraphPass, ...]:
    """Return the passes of a graph over the operators of `specruntime_kernels`, which rotate heads of any size they
    take.
    """
    return (
        FuseOperators("cpu"),
        GroupQueryAttention(),
        FlattenHeads(),
        RotateInAttention(head_size_unit=8),
        PackAttentionInputs(),
        *((MergeEqualWeights(),) if plan.draft_layers else ()),
        AttendInWindows(window, trees=plan.trees),
        MultiplyInWindows(plan.weights, window),
        DropUnusedInputs(),
    )
