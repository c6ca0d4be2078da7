"""`RotaryEmbedding` of query and key moves into `GroupQueryAttention`, which rotates by tables of [capacity, half].

The kernel takes a row's position from the cache length, which is right for chain windows; attention that serves trees
(`TreeBias`) is given `position_ids`. The tables are what the graph computes from `position_ids` alone, for every
position that a cache can hold.
"""

from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir
import onnxruntime
from numpy.typing import NDArray

from specexport.passes import FUSED_DOMAIN, GraphPass, PassReport, lacks_inputs, nodes_of
from specexport.passes.tree_bias import BIAS

_PAST_KEY, _COS, _SIN, _POSITIONS = 3, 7, 8, 9
_HEAD_SIZE_UNIT = 16  # of GroupQueryAttention
POSITIONS = "position_ids"


class RotateInAttention(GraphPass):
    """Where it fires: attention rotates by tables, and by position_ids where its windows may be trees."""

    name = "rotate-in-attention"

    def __init__(self, head_size_unit: int = _HEAD_SIZE_UNIT) -> None:
        self._head_size_unit = head_size_unit

    def requires(self, model: ir.Model) -> str | None:
        nodes = nodes_of(model, "GroupQueryAttention", FUSED_DOMAIN)
        trees = any(len(node.inputs) > BIAS and node.inputs[BIAS] is not None for node in nodes)
        return lacks_inputs(model, POSITIONS) if trees else None

    def ensures(self, model: ir.Model, report: PassReport) -> str | None:
        for node in nodes_of(model, "GroupQueryAttention", FUSED_DOMAIN):
            if not node.attributes.get_int("do_rotary", 0):
                continue
            if node.inputs[_COS] is None or node.inputs[_SIN] is None:
                return f"{node.name} rotates without tables"
            if node.inputs[BIAS] is not None and node.inputs[_POSITIONS] is None:
                return f"{node.name} rotates trees without positions"
        return None

    def __call__(self, model: ir.Model) -> PassReport:
        tables = _Tables(model)
        positions = next((value for value in model.graph.inputs if value.name == POSITIONS), None)
        changed, reasons = 0, []
        for node in list(model.graph):
            if node.op_type != "GroupQueryAttention" or node.domain != "com.microsoft":
                continue
            reason = _fold(node, tables, self._head_size_unit)
            if reason is None:
                changed += 1
                if node.inputs[BIAS] is not None:
                    node.replace_input_with(_POSITIONS, positions)
            else:
                reasons.append(f"{node.name}: {reason}")
        return PassReport(
            self.name, changed, tuple(reasons) or (() if changed else ("no GroupQueryAttention",))
        )


@dataclass
class _Tables:
    """Rotary tables as initializers of the graph, one pair per pair of graph values."""

    model: ir.Model
    _known: dict[tuple[int, ...], tuple[ir.Value, ir.Value] | str] = field(default_factory=dict)

    def of(self, rotary: ir.Node, capacity: int) -> tuple[ir.Value, ir.Value] | str:
        positions, cos, sin = rotary.inputs[1:4]
        assert positions is not None and cos is not None and sin is not None
        key = (id(positions), id(cos), id(sin), capacity)
        if key not in self._known:
            self._known[key] = self._make((positions, cos, sin), capacity)
        return self._known[key]

    def _make(self, sources: tuple[ir.Value, ...], capacity: int) -> tuple[ir.Value, ir.Value] | str:
        graph = self.model.graph
        found = tabulate(graph, dict(self.model.opset_imports), sources, capacity)
        if isinstance(found, str):
            return f"its rotary table cannot be a constant: {found}"
        positions, cos, sin = found
        rows = positions.reshape(-1).astype(np.int64)
        if rows.size == 1:  # one offset: row i reads entry offset + i
            rows = rows[0] + np.arange(capacity)
        number = len(self._known)
        return tuple(  # type: ignore[return-value]
            _initializer(graph, f"rotary_{kind}.{number}", table[rows])
            for kind, table in (("cos", cos), ("sin", sin))
        )


def _fold(attention: ir.Node, tables: _Tables, unit: int) -> str | None:
    """Rewrite one node; the reason where it cannot."""
    rotations = [_rotary(value) for value in attention.inputs[:2]]
    query, key = rotations
    if query is None and key is None:
        return "query and key do not come from a RotaryEmbedding operator"
    if query is None or key is None or query.inputs[1:4] != key.inputs[1:4]:
        return "query and key are not rotated alike by RotaryEmbedding"
    if _style(query) != _style(key) or query.attributes.get_float("scale", 1.0) != 1.0:
        return "query and key are rotated in different styles"
    past = attention.inputs[_PAST_KEY]
    assert past is not None and past.shape is not None
    if int(past.shape[3]) % unit:  # type: ignore[arg-type]
        return f"head size {past.shape[3]} is not a multiple of {unit}, which the kernel asks for to rotate"
    found = tables.of(query, int(past.shape[2]))  # type: ignore[arg-type]
    if isinstance(found, str):
        return found
    attention.replace_input_with(0, query.inputs[0])
    attention.replace_input_with(1, key.inputs[0])
    for index, table in zip((_COS, _SIN), found, strict=True):
        attention.replace_input_with(index, table)
    attention.attributes["do_rotary"] = ir.AttrInt64("do_rotary", 1)
    attention.attributes["rotary_interleaved"] = ir.AttrInt64("rotary_interleaved", _style(query))
    return None


def _rotary(value: ir.Value | None) -> ir.Node | None:
    node = value.producer() if value is not None else None
    matches = node is not None and (node.op_type, node.domain) == ("RotaryEmbedding", "com.microsoft")
    return node if matches else None


def _style(rotary: ir.Node) -> int:
    return rotary.attributes.get_int("interleaved", 0)


def _initializer(graph: ir.Graph, name: str, array: NDArray[np.generic]) -> ir.Value:
    tensor = ir.tensor(np.ascontiguousarray(array), name=name)
    value = ir.Value(
        name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor
    )
    graph.register_initializer(value)
    return value


def tabulate(
    graph: ir.Graph, opsets: dict[str, int], values: tuple[ir.Value, ...], capacity: int
) -> list[NDArray[np.generic]] | str:
    """`values` for one window [1, capacity] at positions 0..capacity-1, or the reason why they are more than that.

    Runs in ONNX Runtime, so that a table holds the very numbers the graph would have computed.
    """
    if any(value.dtype == ir.DataType.BFLOAT16 for value in values):
        return "a bfloat16 table cannot be computed on the host"
    sources = _sources(values)
    if isinstance(sources, str):
        return sources
    subgraph = ir.convenience.extract(graph, sources, values)
    subgraph.opset_imports.update(opsets)
    for value in subgraph.initializers.values():  # a session made from bytes finds no weight file
        assert value.const_value is not None
        value.const_value = ir.tensor(value.const_value.numpy(), name=value.name)
    session = onnxruntime.InferenceSession(
        ir.to_proto(ir.Model(subgraph, ir_version=10)).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    feeds = {value.name: _window(value, capacity) for value in sources}
    return list(session.run([value.name for value in values], feeds))


def _sources(values: tuple[ir.Value, ...]) -> list[ir.Value] | str:
    """Return the graph inputs that `values` are computed from; only the shapes may be read of others than the
    positions.
    """
    found: dict[str, ir.Value] = {}
    seen: set[int] = set()
    pending = [(value, True) for value in values]
    while pending:
        value, by_content = pending.pop()
        if value.const_value is not None or id(value) in seen:
            continue
        node = value.producer()
        if node is None:
            assert value.name is not None
            if by_content and value.name != POSITIONS:
                return f"it depends on {value.name}, not on positions alone"
            found[value.name] = value
            continue
        seen.add(id(value))
        pending.extend((v, node.op_type != "Shape") for v in node.inputs if v is not None)
    return list(found.values())


def _window(value: ir.Value, capacity: int) -> NDArray[np.generic]:
    assert value.shape is not None and value.dtype is not None
    sizes = {"B": 1, "W": capacity, "R": 1}
    shape = tuple(dim if isinstance(dim, int) else sizes[str(dim.value)] for dim in value.shape)
    if value.name == POSITIONS:
        return np.broadcast_to(np.arange(capacity), shape).astype(value.dtype.numpy())
    return np.zeros(shape, value.dtype.numpy())
