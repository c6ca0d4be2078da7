"""`TensorScatter` x2 + `Attention` become one `com.microsoft.GroupQueryAttention` over the same cache buffers.

The kernel writes the new rows itself and reads only the rows in use, so a step's cost follows the context and not the
capacity. It is causal by itself: the graph must serve chain windows (row i sees rows 0..i).
"""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from specexport.export.adapter import FULL_WINDOW, WINDOW_PROPERTY
from specexport.passes import FUSED_DOMAIN, GraphPass, PassReport, first_of, has_node, lacks_inputs, nodes_of
from specexport.passes.graph_builder import replace_value

QUERY_LENGTHS = "query_lengths"
_HEADS_FIRST = (0, 2, 1, 3)


@dataclass(frozen=True)
class _Lengths:
    """Per-graph inputs of every attention node."""

    seqlens: ir.Value  # [B] int32, rows in use after this window, minus one
    total: ir.Value  # scalar int32, upper bound of the rows in use, padding included
    query: ir.Value  # [B] int32, valid rows of the window


@dataclass(frozen=True)
class _Match:
    attention: ir.Node
    scatter_key: ir.Node
    scatter_value: ir.Node


class GroupQueryAttention(GraphPass):
    """Where it fires: no cache is written by TensorScatter, and one more input, query_lengths [B] int32."""

    name = "group-query-attention"

    def requires(self, model: ir.Model) -> str | None:
        attends = next(nodes_of(model, "Attention"), None) is not None
        return lacks_inputs(model, "input_ids", "cache_length") if attends else None

    def ensures(self, model: ir.Model, report: PassReport) -> str | None:
        if not report.changed:
            return None
        return first_of(
            has_node(model, "Attention"),
            has_node(model, "TensorScatter"),
            lacks_inputs(model, QUERY_LENGTHS),
        )

    def __call__(self, model: ir.Model) -> PassReport:
        graph = model.graph
        matches: list[_Match] = []
        reasons: list[str] = []
        for node in graph:
            if node.op_type == "Attention" and node.domain == "":
                found = _match(node)
                if isinstance(found, str):
                    reasons.append(f"{node.name}: {found}")
                else:
                    matches.append(found)
        if not matches:
            return PassReport(self.name, 0, tuple(reasons) or ("no Attention node in the graph",))
        if reasons:
            left = "all attention nodes must match, or the window mask stays needed"
            return PassReport(self.name, 0, (*reasons, left))
        lengths = _add_lengths(graph)
        for match in matches:
            _rewrite(graph, match, lengths)
        model.opset_imports.setdefault("com.microsoft", 1)
        return PassReport(self.name, len(matches))


def _match(attention: ir.Node) -> _Match | str:
    """Return the cache writes behind an attention node, or the reason why it cannot be rewritten."""
    query, key, value = attention.inputs[:3]
    scatters = [v.producer() if v is not None else None for v in (key, value)]
    if any(node is None or node.op_type != "TensorScatter" for node in scatters):
        return "key or value is not a cache written by TensorScatter"
    if WINDOW_PROPERTY not in attention.metadata_props:
        return f"the node carries no '{WINDOW_PROPERTY}'"
    shapes = [v.shape for v in (query, key, value) if v is not None and v.shape is not None]
    if len(shapes) != 3 or not all(isinstance(shape[axis], int) for shape in shapes for axis in (1, 3)):
        return "head counts or head sizes are not static"
    if len({shape[3] for shape in shapes}) != 1:
        return "query, key and value heads differ in size"
    if int(shapes[0][3]) % 8:  # type: ignore[arg-type]
        return f"head size {shapes[0][3]} is not a multiple of 8"
    return _Match(attention, scatters[0], scatters[1])  # type: ignore[arg-type]


def _add_lengths(graph: ir.Graph) -> _Lengths:
    by_name = {value.name: value for value in graph.inputs}
    query = ir.Value(name=QUERY_LENGTHS, shape=ir.Shape(["B"]), type=ir.TensorType(ir.DataType.INT32))
    graph.inputs.append(query)
    one = ir.Value(
        name="query_lengths_one", const_value=ir.tensor(np.array(1, np.int32), name="query_lengths_one")
    )
    graph.register_initializer(one)
    committed = ir.node("Cast", [by_name["cache_length"]], attributes={"to": ir.DataType.INT32})
    total = ir.node("Add", [committed.outputs[0], query])
    last = ir.node("Sub", [total.outputs[0], one])
    # The kernel wants its upper bound to cover the padded window, not only the valid rows.
    longest = ir.node("ReduceMax", [committed.outputs[0]], attributes={"keepdims": 0})
    shape = ir.node("Shape", [by_name["input_ids"]], attributes={"start": 1, "end": 2})
    width = ir.node("Squeeze", [shape.outputs[0]])
    width_int32 = ir.node("Cast", [width.outputs[0]], attributes={"to": ir.DataType.INT32})
    bound = ir.node("Add", [longest.outputs[0], width_int32.outputs[0]])
    graph.insert_before(graph[0], [committed, total, last, longest, shape, width, width_int32, bound])
    return _Lengths(last.outputs[0], bound.outputs[0], query)


def _rewrite(graph: ir.Graph, match: _Match, lengths: _Lengths) -> None:
    attention = match.attention
    query, key = attention.inputs[0], attention.inputs[1]
    assert query is not None and query.shape is not None and key is not None and key.shape is not None
    heads, kv_heads, head_dim = int(query.shape[1]), int(key.shape[1]), int(query.shape[3])  # type: ignore[arg-type]
    flat = [
        _to_flat(graph, attention, value, head_count * head_dim)
        for value, head_count in (
            (query, heads),
            (match.scatter_key.inputs[1], kv_heads),
            (match.scatter_value.inputs[1], kv_heads),
        )
    ]
    past = [match.scatter_key.inputs[0], match.scatter_value.inputs[0]]
    unused = [None] * 9  # cos, sin, position_ids, attention_bias, head_sink, k_scale, v_scale, q_norm, k_norm
    node = ir.node(
        "GroupQueryAttention",
        [*flat, *past, lengths.seqlens, lengths.total, *unused, lengths.query],
        attributes=_attributes(attention, heads, kv_heads, head_dim),
        domain="com.microsoft",
        num_outputs=3,
        name=f"{attention.name}_gqa",
    )
    graph.insert_before(attention, node)
    flat_output, present = node.outputs[0], node.outputs[1:]
    _describe(flat_output, query.type, [query.shape[0], query.shape[2], heads * head_dim])
    replace_value(attention.outputs[0], _from_flat(graph, attention, flat_output, query.shape))
    for scatter, value in zip((match.scatter_key, match.scatter_value), present, strict=True):
        replace_value(scatter.outputs[0], value)
    graph.remove([attention, match.scatter_key, match.scatter_value], safe=True)


def _attributes(attention: ir.Node, heads: int, kv_heads: int, head_dim: int) -> dict[str, int | float]:
    window = int(attention.metadata_props[WINDOW_PROPERTY])
    attributes: dict[str, int | float] = {
        "num_heads": heads,
        "kv_num_heads": kv_heads,
        "scale": attention.attributes.get_float("scale", head_dim**-0.5),
    }
    if window != FULL_WINDOW:
        attributes["local_window_size"] = window
    softcap = attention.attributes.get_float("softcap", 0.0)
    if softcap:
        attributes["softcap"] = softcap
    return attributes


def _to_flat(graph: ir.Graph, before: ir.Node, value: ir.Value | None, size: int) -> ir.Value:
    """[B, heads, W, head_dim] -> [B, W, heads * head_dim]."""
    assert value is not None and value.shape is not None
    swapped = [value.shape[axis] for axis in _HEADS_FIRST]
    rows_first = ir.node("Transpose", [value], attributes={"perm": _HEADS_FIRST})
    _describe(rows_first.outputs[0], value.type, swapped)
    flat = ir.node("Reshape", [rows_first.outputs[0], _constant(graph, (0, 0, size))])
    _describe(flat.outputs[0], value.type, [value.shape[0], value.shape[2], size])
    graph.insert_before(before, [rows_first, flat])
    return flat.outputs[0]


def _from_flat(graph: ir.Graph, before: ir.Node, flat: ir.Value, shape: ir.Shape) -> ir.Value:
    """[B, W, heads * head_dim] -> [B, heads, W, head_dim]."""
    heads, head_dim = int(shape[1]), int(shape[3])  # type: ignore[arg-type]
    split = ir.node("Reshape", [flat, _constant(graph, (0, 0, heads, head_dim))])
    _describe(split.outputs[0], flat.type, [shape[axis] for axis in _HEADS_FIRST])
    heads_first = ir.node("Transpose", [split.outputs[0]], attributes={"perm": _HEADS_FIRST})
    _describe(heads_first.outputs[0], flat.type, list(shape))
    graph.insert_before(before, [split, heads_first])
    return heads_first.outputs[0]


def _describe(value: ir.Value, kind: ir.TypeProtocol | None, dims: list[int | ir.SymbolicDim]) -> None:
    value.type, value.shape = kind, ir.Shape(dims)


def _constant(graph: ir.Graph, shape: tuple[int, ...]) -> ir.Value:
    name = "shape_" + "_".join(map(str, shape))
    known = graph.initializers.get(name)
    if known is not None:
        return known
    value = ir.Value(name=name, const_value=ir.tensor(np.array(shape, np.int64), name=name))
    graph.register_initializer(value)
    return value


class FlattenHeads(GraphPass):
    """No Transpose or Reshape is turned back by the next one."""

    name = "flatten-heads"

    def __call__(self, model: ir.Model) -> PassReport:
        changed = 0
        for node in list(model.graph):
            while (pair := _turned_back(node)) is not None:
                result, source = pair
                result.replace_all_uses_with(source)
                changed += 1
        return PassReport(self.name, changed, () if changed else ("no pair of inverse reshapes",))

    def ensures(self, model: ir.Model, report: PassReport) -> str | None:
        left = next((node for node in model.graph if _turned_back(node) is not None), None)
        return None if left is None else f"{left.name} turns back what the node before it did"


def _producer(value: ir.Value | None, op_type: str) -> ir.Node | None:
    node = value.producer() if value is not None else None
    return node if node is not None and node.op_type == op_type and node.domain == "" else None


def _turned_back(node: ir.Node) -> tuple[ir.Value, ir.Value] | None:
    """Return (result, source) of a node in use that only undoes the node before it: both are the same numbers."""
    inner = _producer(node.inputs[0], node.op_type) if node.op_type in ("Transpose", "Reshape") else None
    if inner is None or inner.inputs[0] is None or node.domain:
        return None
    source, target = inner.inputs[0], node.outputs[0]
    if target.is_graph_output() or not target.uses():
        return None
    undone = _is_inverse(inner, node) if node.op_type == "Transpose" else _have_one_shape(source, target)
    return (target, source) if undone else None


def _is_inverse(inner: ir.Node, outer: ir.Node) -> bool:
    outer_perm, inner_perm = (node.attributes.get_ints("perm", []) for node in (outer, inner))
    return [inner_perm[axis] for axis in outer_perm] == list(range(len(outer_perm)))


def _have_one_shape(source: ir.Value, target: ir.Value) -> bool:
    if source.shape is None or target.shape is None or not _is_known(source.shape):
        return False
    return tuple(map(str, source.shape)) == tuple(map(str, target.shape))


def _is_known(shape: ir.Shape) -> bool:
    return all(isinstance(dim, int | np.integer) or dim.value is not None for dim in shape)


class PackAttentionInputs(GraphPass):
    """No Split is between a packed projection and its attention."""

    name = "pack-attention-inputs"

    def requires(self, model: ir.Model) -> str | None:
        for node in nodes_of(model, "GroupQueryAttention", FUSED_DOMAIN):
            query = node.inputs[0]
            if query is not None and query.shape is not None and len(query.shape) != 3:
                return f"the query of {node.name} is not flat"
        return None

    def ensures(self, model: ir.Model, report: PassReport) -> str | None:
        for node in nodes_of(model, "GroupQueryAttention", FUSED_DOMAIN):
            if _packed_source(node) is not None:
                return f"the inputs of {node.name} are the parts of one Split"
        return None

    def __call__(self, model: ir.Model) -> PassReport:
        changed, reasons = 0, []
        for node in model.graph:
            if node.op_type != "GroupQueryAttention" or node.domain != "com.microsoft":
                continue
            packed = _packed_source(node)
            if packed is None:
                reasons.append(
                    f"{node.name}: query, key and value are not the parts of one Split, in this order"
                )
                continue
            for index, value in enumerate((packed, None, None)):
                node.replace_input_with(index, value)
            changed += 1
        return PassReport(
            self.name, changed, tuple(reasons) or (() if changed else ("no GroupQueryAttention",))
        )


def _packed_source(attention: ir.Node) -> ir.Value | None:
    """Return the value that query, key and value together are, where they come out of one split of its last axis."""
    query = attention.inputs[0]
    split = query.producer() if query is not None else None
    if split is None or split.op_type != "Split" or list(attention.inputs[:3]) != list(split.outputs):
        return None
    return split.inputs[0] if split.attributes.get_int("axis", 0) in (-1, 2) else None
