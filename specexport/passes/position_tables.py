"""What a graph computes from position_ids alone, tabulated once for every position a cache can hold."""

import numpy as np
import onnx_ir as ir
import onnxruntime
from numpy.typing import NDArray

POSITIONS = "position_ids"


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
