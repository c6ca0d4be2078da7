"""The key cache passes through one flat shape on its way into attention.

Read directly, tensorrt-rtx 1.7 compiles the write of the key rows into a copy of the whole cache (`Move`, past to
present) and a scatter into the copy. Behind two reshapes that change nothing it scatters in place, as it does for the
values. The attention stays fused. (Measured on the builder's layer listing.)
"""

import numpy as np
import onnx_ir as ir

from specexport.passes import PassReport
from specexport.tensorrt.lowering.graph_edit import constant, insert_node, rewrite_attention, static_size


class FlattenKey:
    """key -> Reshape [B * kv_heads, capacity, head_dim] -> Reshape [B, kv_heads, capacity, head_dim]."""

    name = "flatten-key"
    requires = (
        "a key [B, kv_heads, capacity, head_dim], of numbers but for the batch, written by TensorScatter"
    )
    ensures = "no Attention reads the output of a TensorScatter as its key"

    def __call__(self, model: ir.Model) -> PassReport:
        return rewrite_attention(self.name, model, _flatten)


def _flatten(graph: ir.Graph, node: ir.Node) -> str | None:
    key = node.inputs[1]
    if key is None:
        return "the node has no key"
    producer = key.producer()
    if producer is None or producer.op_type != "TensorScatter":
        return "the key is not what TensorScatter wrote"
    sizes = [size for axis in range(1, 4) if (size := static_size(key, axis)) is not None]
    if len(sizes) != 3:
        return "the key's shape is not numbers behind the batch"
    heads, capacity, head_dim = sizes
    batch = static_size(key, 0)
    rows = -1 if batch is None else batch * heads
    current = key
    for label, shape in (
        ("flat", [rows, capacity, head_dim]),
        ("unflat", [-1 if batch is None else batch, *sizes]),
    ):
        target = constant(graph, f"key_{label}_{'x'.join(map(str, shape))}", np.array(shape, np.int64))
        current = insert_node(
            graph, node, "Reshape", [current, target],
            output=f"{node.name}_{label}_key", dtype=key.dtype,
            shape=ir.Shape([None if size < 0 else size for size in shape]),
        )  # fmt: skip
    node.replace_input_with(1, current)
    return None
