"""Grouped queries become rows, so that no key or value is repeated per query head.

TensorRT's attention kernel wants as many KV heads as query heads; given fewer, the compiler writes a repeated copy of
the whole cache in front of every attention. The heads of one group read the same keys, so they can be rows of one head
instead: [B, kv_heads * G, W, D] is [B, kv_heads, G * W, D] in memory, and the mask is repeated G times along its rows.
(Measured with tensorrt-rtx 1.7.)
"""

import numpy as np
import onnx_ir as ir

from specexport.passes import GraphPass, PassReport, nodes_of
from specexport.tensorrt.lowering.graph_edit import constant, insert_node, rewrite_attention, static_size


class GroupQueries(GraphPass):
    """Attention over [B, kv_heads, G * W, D] in place of [B, heads, W, D]."""

    name = "group-queries"

    def __call__(self, model: ir.Model) -> PassReport:
        masks: dict[tuple[ir.Value, int], ir.Value] = {}  # one repeated mask for all layers that share it
        return rewrite_attention(self.name, model, lambda graph, node: _group(graph, node, masks))

    def ensures(self, model: ir.Model, report: PassReport) -> str | None:
        alike = 0
        for node in nodes_of(model, "Attention"):
            query, key = node.inputs[:2]
            if query is not None and key is not None:
                alike += static_size(query, 1) == static_size(key, 1)
        return (
            None
            if alike >= report.changed
            else f"only {alike} Attention nodes have a key head per query head"
        )


def _group(graph: ir.Graph, node: ir.Node, masks: dict[tuple[ir.Value, int], ir.Value]) -> str | None:
    query, key, value, mask = (node.inputs[i] for i in range(4)) if len(node.inputs) >= 4 else (None,) * 4
    if query is None or key is None or value is None or mask is None or mask.shape is None:
        return "expected query, key, value and a mask of known shape"
    heads, kv_heads = static_size(query, 1), static_size(key, 1)
    head_dim, value_dim = static_size(query, 3), static_size(value, 3)
    if heads is None or kv_heads is None or head_dim is None or value_dim is None:
        return "the number of heads or head_dim is not a number"
    if heads == kv_heads:
        return "each query head has its own key head"
    if mask.shape[1] != 1:
        return "the mask differs between heads"
    groups = heads // kv_heads
    if (mask, groups) not in masks:
        masks[mask, groups] = _repeat_mask(graph, node, mask, groups)
    rows = insert_node(
        graph, node, "Reshape", [query, _shape_constant(graph, kv_heads, head_dim)],
        output=f"{node.name}_grouped_query", dtype=query.dtype,
        shape=ir.Shape([mask.shape[0], kv_heads, None, head_dim]),
    )  # fmt: skip
    node.replace_input_with(0, rows)
    node.replace_input_with(3, masks[mask, groups])
    _ungroup_output(graph, node, heads, kv_heads, value_dim)
    return None


def _shape_constant(graph: ir.Graph, heads: int, head_dim: int) -> ir.Value:
    return constant(graph, f"rows_of_{heads}_heads_{head_dim}", np.array([0, heads, -1, head_dim], np.int64))


def _repeat_mask(graph: ir.Graph, node: ir.Node, mask: ir.Value, groups: int) -> ir.Value:
    assert mask.shape is not None
    return insert_node(
        graph, node, "Concat", [mask] * groups,
        output=f"{mask.name}_per_group_{groups}", dtype=mask.dtype,
        shape=ir.Shape([mask.shape[0], 1, None, mask.shape[3]]), attributes={"axis": 2},
    )  # fmt: skip


def _ungroup_output(graph: ir.Graph, node: ir.Node, heads: int, kv_heads: int, value_dim: int) -> None:
    grouped = node.outputs[0]
    uses = list(grouped.uses())
    shape = grouped.shape
    batch = shape[0] if shape is not None else None
    restored = insert_node(
        graph, node, "Reshape", [grouped, _shape_constant(graph, heads, value_dim)],
        output=f"{grouped.name}_by_head", dtype=grouped.dtype, shape=shape, after=True,
    )  # fmt: skip
    grouped.shape = ir.Shape([batch, kv_heads, None, value_dim])
    for user, index in uses:
        user.replace_input_with(index, restored)
