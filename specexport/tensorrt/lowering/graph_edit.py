"""Small edits that every lowering pass needs: a typed node, a scalar constant, a walk over the attention nodes.

Owns the naming of what passes insert. Knows nothing of any particular rewrite.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from specexport.passes import PassReport


def insert_node(
    graph: ir.Graph,
    anchor: ir.Node,
    op_type: str,
    inputs: Sequence[ir.Value | None],
    *,
    output: str,
    dtype: ir.DataType | None,
    shape: ir.Shape | None,
    attributes: Mapping[str, ir.Attr | int | float] | None = None,
    after: bool = False,
) -> ir.Value:
    """Add one node before (or after) `anchor`; its single output is called `output` and the node `node_<output>`."""
    node = ir.node(op_type, inputs, attributes=attributes, name=f"node_{output}")
    result = node.outputs[0]
    result.name = output
    if dtype is not None:
        result.type = ir.TensorType(dtype)
    result.shape = shape
    if after:
        graph.insert_after(anchor, node)
    else:
        graph.insert_before(anchor, node)
    return result


def constant(
    graph: ir.Graph, name: str, array: NDArray[np.generic], dtype: ir.DataType | None = None
) -> ir.Value:
    """Return an initializer of the graph; the one already there where the name is taken."""
    known = graph.initializers.get(name)
    if known is not None:
        return known
    tensor = ir.tensor(array, dtype=dtype, name=name)
    value = ir.Value(
        name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape), const_value=tensor
    )
    graph.register_initializer(value)
    return value


def static_size(value: ir.Value, axis: int) -> int | None:
    """Return the size of `value` along `axis`; None where it is not a number."""
    if value.shape is None or axis >= len(value.shape):
        return None
    size = value.shape[axis]
    return size if isinstance(size, int) else None


def rewrite_attention(
    name: str, model: ir.Model, rewrite: Callable[[ir.Graph, ir.Node], str | None]
) -> PassReport:
    """Run `rewrite` on each ONNX `Attention` node; it returns None where it fired and the reason where it did not."""
    nodes = [node for node in model.graph if node.op_type == "Attention" and node.domain == ""]
    outcomes = [(node.name, rewrite(model.graph, node)) for node in nodes]
    reasons = tuple(f"{node}: {reason}" for node, reason in outcomes if reason is not None)
    changed = len(outcomes) - len(reasons)
    return PassReport(name, changed, reasons if nodes else ("the graph has no Attention node",))
