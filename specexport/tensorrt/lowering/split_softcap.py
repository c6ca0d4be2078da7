"""Attention with a logit soft-cap becomes its own definition in primitive operators.

TensorRT's parser refuses `softcap` ("onnxOpCheckers.cpp: checkAttention", tensorrt-rtx 1.7), so Gemma 2 would not
compile at all. The scores are capped, masked and normalised in float32, as in the PyTorch model. Such attention is not
fused; the engine report names it.
"""

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from specexport.passes import GraphPass, PassReport, nodes_of
from specexport.passes.window_attention import SPLIT_PROPERTY
from specexport.tensorrt.lowering.graph_edit import constant, insert_node, rewrite_attention


def split_attention(graph: ir.Graph) -> tuple[str, ...]:
    """Names of the Attention nodes that `SplitSoftcap` or a fused draft took apart in this graph."""
    return tuple(
        node.metadata_props[SPLIT_PROPERTY] for node in graph if SPLIT_PROPERTY in node.metadata_props
    )


class SplitSoftcap(GraphPass):
    """softmax(where(mask, c * tanh(q k^T / c), lowest)) v in place of Attention(softcap=c)."""

    name = "split-softcap"

    def __call__(self, model: ir.Model) -> PassReport:
        return rewrite_attention(self.name, model, _split)

    def ensures(self, model: ir.Model, report: PassReport) -> str | None:
        capped = [
            node.name for node in nodes_of(model, "Attention") if node.attributes.get_float("softcap", 0.0)
        ]
        return f"{capped[0]} has a softcap" if capped and not report.reasons else None


def _split(graph: ir.Graph, node: ir.Node) -> str | None:
    cap = node.attributes.get_float("softcap", 0.0)
    if not cap:
        return "no softcap"
    query, key, value, mask = node.inputs[:4]
    if (
        query is None
        or key is None
        or value is None
        or mask is None
        or query.shape is None
        or key.shape is None
    ):
        return "expected query, key, value and mask of known shape"
    if query.shape[1] != key.shape[1] or node.attributes.get_float("scale", 0.0) != 1.0:
        return "the heads are not grouped or the scale is not folded"
    scores = _scores(graph, node, query, key)
    weights = _normalised(graph, node, scores, mask, cap, query.dtype)
    output = node.outputs[0]
    result = insert_node(
        graph, node, "MatMul", [weights, value],
        output=f"{output.name}_split", dtype=output.dtype, shape=output.shape,
    )  # fmt: skip
    producer = result.producer()
    assert producer is not None and node.name is not None
    producer.metadata_props[SPLIT_PROPERTY] = node.name
    output.replace_all_uses_with(result)
    graph.remove(node, safe=True)
    return None


def _scores(graph: ir.Graph, node: ir.Node, query: ir.Value, key: ir.Value) -> ir.Value:
    """[B, heads, W, capacity] in float32."""
    assert query.shape is not None and key.shape is not None
    batch, heads, capacity, head_dim = (key.shape[axis] for axis in range(4))
    columns = insert_node(
        graph, node, "Transpose", [key], output=f"{node.name}_key_columns", dtype=key.dtype,
        shape=ir.Shape([batch, heads, head_dim, capacity]), attributes={"perm": ir.AttrInt64s("perm", [0, 1, 3, 2])},
    )  # fmt: skip
    shape = ir.Shape([batch, heads, query.shape[2], capacity])
    product = insert_node(
        graph, node, "MatMul", [query, columns], output=f"{node.name}_product", dtype=query.dtype, shape=shape
    )
    return _float32(graph, node, product, "scores")


def _normalised(
    graph: ir.Graph, node: ir.Node, scores: ir.Value, mask: ir.Value, cap: float, dtype: ir.DataType | None
) -> ir.Value:
    ratio = constant(graph, f"softcap_{cap:.8g}", np.array(cap, np.float32))
    # Finite, so that a row that sees nothing gives numbers; exp of it is 0 next to any visible score.
    lowest = constant(graph, "softcap_masked", np.array(np.finfo(np.float32).min, np.float32))
    current = scores
    steps: tuple[tuple[str, str, Callable[[ir.Value], list[ir.Value]]], ...] = (
        ("divided", "Div", lambda value: [value, ratio]),
        ("tanh", "Tanh", lambda value: [value]),
        ("capped", "Mul", lambda value: [value, ratio]),
        ("masked", "Where", lambda value: [mask, value, lowest]),
        ("weights", "Softmax", lambda value: [value]),
    )
    for suffix, op_type, operands in steps:
        current = insert_node(
            graph, node, op_type, operands(current),
            output=f"{node.name}_{suffix}", dtype=ir.DataType.FLOAT, shape=scores.shape,
        )  # fmt: skip
    if dtype is None or dtype == ir.DataType.FLOAT:
        return current
    return insert_node(
        graph, node, "Cast", [current], output=f"{node.name}_narrow_weights", dtype=dtype,
        shape=scores.shape, attributes={"to": int(dtype)},
    )  # fmt: skip


def _float32(graph: ir.Graph, node: ir.Node, value: ir.Value, label: str) -> ir.Value:
    if value.dtype in (None, ir.DataType.FLOAT):
        return value
    return insert_node(
        graph, node, "Cast", [value], output=f"{node.name}_{label}", dtype=ir.DataType.FLOAT,
        shape=value.shape, attributes={"to": int(ir.DataType.FLOAT)},
    )  # fmt: skip
