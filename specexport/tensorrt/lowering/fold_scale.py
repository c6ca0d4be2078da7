"""The attention scale moves into the query.

ONNX `Attention` multiplies query *and* key by sqrt(scale); TensorRT's parser does the same, which rewrites the whole
[kv_heads, capacity, head_dim] cache at each step. Scaling W query rows instead costs nothing and is exact where the
scale is a power of two.
"""

import numpy as np
import onnx_ir as ir

from specexport.passes import PassReport
from specexport.tensorrt.lowering.graph_edit import constant, insert_node, rewrite_attention


class FoldScale:
    """Attention(q, k, v; scale=s) -> Attention(q * s, k, v; scale=1)."""

    name = "fold-scale"
    requires = "Attention with a query [B, heads, W, head_dim]"
    ensures = "scale is 1 on every Attention where it fired"

    def __call__(self, model: ir.Model) -> PassReport:
        return rewrite_attention(self.name, model, _fold)


def _fold(graph: ir.Graph, node: ir.Node) -> str | None:
    query = node.inputs[0]
    if query is None or query.shape is None or query.dtype is None or len(query.shape) != 4:
        return "the query's shape is not [B, heads, W, head_dim]"
    head_dim = query.shape[3]
    if not isinstance(head_dim, int):
        return "head_dim is not a number"
    written = node.attributes.get("scale")
    scale = float(written.as_float()) if written is not None else head_dim**-0.5
    if scale == 1.0:
        return "the scale is 1 already"
    label = f"attention_scale_{scale:.8g}_{query.dtype.name.lower()}"
    factor = constant(graph, label, np.array(scale, dtype=query.dtype.numpy()))
    scaled = insert_node(
        graph, node, "Mul", [query, factor],
        output=f"{node.name}_scaled_query", dtype=query.dtype, shape=query.shape,
    )  # fmt: skip
    node.replace_input_with(0, scaled)
    node.attributes["scale"] = ir.AttrFloat32("scale", 1.0)
    return None
