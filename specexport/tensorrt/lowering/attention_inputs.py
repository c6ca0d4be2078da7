"""The key cache passes through one flat shape on its way into attention.

Read directly, tensorrt-rtx 1.7 compiles the write of the key rows into a copy of the whole cache (`Move`, past to
present) and a scatter into the copy. Behind two reshapes that change nothing it scatters in place, as it does for the
values. The attention stays fused. (Measured on the builder's layer listing.)
"""

import numpy as np
import onnx_ir as ir

from specexport.passes import GraphPass, PassReport, nodes_of
from specexport.tensorrt.lowering.graph_edit import constant, insert_node, rewrite_attention, static_size


class FlattenKey(GraphPass):
    """key -> Reshape [B * kv_heads, capacity, head_dim] -> Reshape [B, kv_heads, capacity, head_dim]."""

    name = "flatten-key"

    def __call__(self, model: ir.Model) -> PassReport:
        return rewrite_attention(self.name, model, _flatten)

    def ensures(self, model: ir.Model, report: PassReport) -> str | None:
        for node in nodes_of(model, "Attention"):
            producer = node.inputs[1].producer() if node.inputs[1] is not None else None
            if not report.reasons and producer is not None and producer.op_type == "TensorScatter":
                return f"{node.name} reads the written key itself"
        return None


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


class AnchorMask(GraphPass):
    """mask -> Or(mask, mask), once per mask."""

    name = "anchor-mask"

    def __call__(self, model: ir.Model) -> PassReport:
        anchored: dict[ir.Value, ir.Value] = {}
        return rewrite_attention(self.name, model, lambda graph, node: _anchor(graph, node, anchored))

    def ensures(self, model: ir.Model, report: PassReport) -> str | None:
        for node in nodes_of(model, "Attention"):
            mask = node.inputs[3] if len(node.inputs) > 3 else None
            if mask is None or mask.dtype != ir.DataType.BOOL:
                continue
            producer = mask.producer()
            if producer is None or producer.op_type != "Or":
                return f"the mask of {node.name} is not the result of an Or"
        return None


def _anchor(graph: ir.Graph, node: ir.Node, anchored: dict[ir.Value, ir.Value]) -> str | None:
    mask = node.inputs[3] if len(node.inputs) > 3 else None
    if mask is None:
        return "the node has no mask"
    if mask.dtype != ir.DataType.BOOL:
        return f"the mask is {mask.dtype}, expected bool"
    producer = mask.producer()
    if producer is not None and producer.op_type == "Or":
        return "the mask comes from an Or already"
    if mask not in anchored:
        anchored[mask] = insert_node(
            graph,
            node,
            "Or",
            [mask, mask],
            output=f"{mask.name}_anchored",
            dtype=mask.dtype,
            shape=mask.shape,
        )
    node.replace_input_with(3, anchored[mask])
    return None


class FixBatch(GraphPass):
    """Replaces the symbol `B` by `batch` in the shape of every value."""

    name = "fix-batch"

    def __init__(self, batch: int) -> None:
        self._batch = batch

    def __call__(self, model: ir.Model) -> PassReport:
        changed = sum(self._fix(value) for value in _values(model.graph))
        reasons = () if changed else ("no shape has the symbol B: the batch is fixed already",)
        return PassReport(self.name, changed, reasons)

    def ensures(self, model: ir.Model, report: PassReport) -> str | None:
        for value in _values(model.graph):
            if value.shape is not None and any(map(_is_batch, value.shape)):
                return f"the batch of {value.name} is open"
        return None

    def _fix(self, value: ir.Value) -> bool:
        if value.shape is None or not any(_is_batch(dimension) for dimension in value.shape):
            return False
        value.shape = ir.Shape(
            [self._batch if _is_batch(dimension) else dimension for dimension in value.shape]
        )
        return True


def _is_batch(dimension: object) -> bool:
    return isinstance(dimension, ir.SymbolicDim) and dimension.value == "B"


def _values(graph: ir.Graph) -> list[ir.Value]:
    return [*graph.inputs, *(output for node in graph for output in node.outputs)]


class FoldScale(GraphPass):
    """Attention(q, k, v; scale=s) -> Attention(q * s, k, v; scale=1)."""

    name = "fold-scale"

    def __call__(self, model: ir.Model) -> PassReport:
        return rewrite_attention(self.name, model, _fold)

    def ensures(self, model: ir.Model, report: PassReport) -> str | None:
        scales = [node.attributes.get_float("scale", 0.0) for node in nodes_of(model, "Attention")]
        folded = scales.count(1.0)
        return None if folded >= report.changed else f"{folded} of {len(scales)} Attention nodes have scale 1"


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
