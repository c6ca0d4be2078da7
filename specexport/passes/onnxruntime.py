"""The pass list that turns the canonical graph into ONNX Runtime's variant."""

from specexport.passes import GraphPass
from specexport.passes.attention_rotary import RotateInAttention
from specexport.passes.flat_heads import FlattenHeads
from specexport.passes.fused_operators import FuseOperators
from specexport.passes.group_query_attention import GroupQueryAttention
from specexport.passes.packed_attention import PackAttentionInputs
from specexport.passes.unused_inputs import DropUnusedInputs


def onnxruntime_passes(provider: str) -> tuple[GraphPass, ...]:
    """Passes for ONNX Runtime's `provider`: "cpu", "cuda" or "tensorrt" (which takes the canonical operators)."""
    if provider == "tensorrt":
        return (DropUnusedInputs(),)
    return (
        FuseOperators(provider),
        GroupQueryAttention(),
        FlattenHeads(),
        RotateInAttention(),
        PackAttentionInputs(),
        DropUnusedInputs(),
    )
