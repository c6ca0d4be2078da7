"""Appends nodes to a graph: one call per operator, names given, constants shared.

Owns nothing but how a node is added. Shapes are left to the next loader, except where a caller sets them.
"""

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

Attribute = int | float | str | Sequence[int]


class Builder:
    """`prefix` begins the name of every node, so that two builders of one graph do not meet."""

    def __init__(self, graph: ir.Graph, prefix: str = "fused") -> None:
        self._graph = graph
        self._prefix = prefix
        self._count = 0

    def add(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        dtype: ir.DataType | None = None,
        domain: str = "",
        **attributes: Attribute,
    ) -> ir.Value:
        """Return the output of a new node at the end of the graph; its dtype is the first input's unless given."""
        node = ir.node(op_type, inputs, attributes=attributes, domain=domain, name=self._name(op_type))
        output = node.outputs[0]
        output.name = f"{node.name}_output"
        first = inputs[0] if inputs else None
        dtype = dtype or (first.dtype if first is not None else None)
        if dtype is not None:
            output.dtype = dtype
        self._graph.append(node)
        return output

    def add_outputs(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        dtypes: Sequence[ir.DataType],
        domain: str = "",
        **attributes: Attribute,
    ) -> Sequence[ir.Value]:
        """As `add`, for an operator with an output for each of `dtypes`."""
        node = ir.node(
            op_type,
            inputs,
            attributes=attributes,
            domain=domain,
            num_outputs=len(dtypes),
            name=self._name(op_type),
        )
        for index, (output, dtype) in enumerate(zip(node.outputs, dtypes, strict=True)):
            output.name, output.dtype = f"{node.name}_output_{index}", dtype
        self._graph.append(node)
        return node.outputs

    def add_split(self, value: ir.Value, sizes: ir.Value, axis: int, parts: int) -> Sequence[ir.Value]:
        """`value` cut along `axis` into `parts` of the given sizes."""
        node = ir.node(
            "Split", [value, sizes], attributes={"axis": axis}, num_outputs=parts, name=self._name("Split")
        )
        for index, output in enumerate(node.outputs):
            output.name = f"{node.name}_output_{index}"
            if value.dtype is not None:
                output.dtype = value.dtype
        self._graph.append(node)
        return node.outputs

    def copy(self, node: ir.Node, values: Mapping[ir.Value, ir.Value]) -> Sequence[ir.Value]:
        """Return a copy of `node` that reads `values` in place of its own inputs where they say so."""
        inputs = [values.get(value, value) if value is not None else None for value in node.inputs]
        copied = ir.Node(
            node.domain,
            node.op_type,
            inputs,
            attributes=list(node.attributes.values()),
            num_outputs=len(node.outputs),
            name=self._name(node.op_type),
        )
        for index, (old, new) in enumerate(zip(node.outputs, copied.outputs, strict=True)):
            new.name = f"{copied.name}_output_{index}"
            if old.dtype is not None:
                new.dtype = old.dtype
        self._graph.append(copied)
        return copied.outputs

    def constant(self, array: NDArray[np.generic]) -> ir.Value:
        """Return an initializer; equal ones are one."""
        content = hashlib.sha256(array.tobytes()).hexdigest()[:16]
        name = f"constant_{array.dtype.name}_{'x'.join(map(str, array.shape))}_{content}"
        known = self._graph.initializers.get(name)
        if known is not None:
            return known
        tensor = ir.tensor(array, name=name)
        value = ir.Value(
            name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape), const_value=tensor
        )
        self._graph.register_initializer(value)
        return value

    def unsqueeze(self, value: ir.Value, axis: int) -> ir.Value:
        return self.add("Unsqueeze", [value, self.constant(np.array([axis]))])

    def concat(self, values: Sequence[ir.Value], axis: int) -> ir.Value:
        """Return the values one after the other; a single one stays itself."""
        return values[0] if len(values) == 1 else self.add("Concat", values, axis=axis)

    def size(self, value: ir.Value, axis: int) -> ir.Value:
        """[1] int64: the size of `value` along `axis` at run time."""
        return self.add("Shape", [value], ir.DataType.INT64, start=axis, end=axis + 1)

    def _name(self, op_type: str) -> str:
        self._count += 1
        return f"{self._prefix}_{op_type}_{self._count}"


def replace_value(old: ir.Value, new: ir.Value) -> None:
    """Every use of `old`, a graph output included, reads `new`, which takes its name, shape and type."""
    name = old.name
    old.name, new.name = f"{name}_replaced", name
    new.type, new.shape = old.type, old.shape
    old.replace_all_uses_with(new, replace_graph_outputs=True)
