"""The pass list that turns the canonical graph into ONNX Runtime's variant."""

from specexport.graph_plan import PLAIN, GraphPlan
from specexport.passes import GraphPass
from specexport.passes.attention_rotary import RotateInAttention
from specexport.passes.draft_head import ShareHeadWeights
from specexport.passes.equal_weights import MergeEqualWeights
from specexport.passes.flat_heads import FlattenHeads
from specexport.passes.fused_operators import FuseOperators
from specexport.passes.group_query_attention import GroupQueryAttention
from specexport.passes.packed_attention import PackAttentionInputs
from specexport.passes.quantize_weights import QuantizeWeights
from specexport.passes.tree_bias import TreeBias
from specexport.passes.unused_inputs import DropUnusedInputs


def onnxruntime_passes(provider: str, plan: GraphPlan = PLAIN) -> tuple[GraphPass, ...]:
    """Passes for ONNX Runtime's `provider`: "cpu", "cuda" or "tensorrt" (which takes the canonical operators).

    Of the plan trees, weights and a draft path matter here: the canonical operators serve trees as they are.
    """
    if provider == "tensorrt":
        return (DropUnusedInputs(),)
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
