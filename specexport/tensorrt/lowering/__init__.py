"""The pass list that turns the canonical graph into TensorRT's variant."""

import onnx_ir as ir

from specexport.passes import GraphPass
from specexport.tensorrt.lowering.attention_inputs import AnchorMask, FixBatch, FlattenKey, FoldScale
from specexport.tensorrt.lowering.group_queries import GroupQueries
from specexport.tensorrt.lowering.split_softcap import SplitSoftcap, split_attention

__all__ = ["split_attention_names", "tensorrt_passes"]


def tensorrt_passes(batch: int) -> tuple[GraphPass, ...]:
    """Return the passes for `tensorrt` and `tensorrt_rtx`; inputs and outputs keep their names.

    A batch of 1 becomes a number in every shape; a larger one is the most sequences a launch holds, and stays open.
    """
    fixed = (FixBatch(batch),) if batch == 1 else ()
    return (*fixed, FoldScale(), GroupQueries(), SplitSoftcap(), AnchorMask(), FlattenKey())


def split_attention_names(model: ir.Model) -> tuple[str, ...]:
    """Return the attention nodes of the canonical graph that a lowered graph holds as primitive operators."""
    return split_attention(model.graph)
