"""Which products of a graph are linear layers, and which of them make the outputs that people read.

Owns the question only; what becomes of a layer is for the passes to say.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from specexport.passes.graph_builder import replace_value

LOGITS = ("logits", "draft_logits")
_WORKS_AROUND_PRODUCT = {"Cast", "Mul", "Div", "Add", "Tanh", "Slice", "Identity", "Concat", "Reshape"}
_FLOATING = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def products_behind(graph: ir.Graph, outputs: Collection[str]) -> Iterator[ir.Node]:
    """Yield the product behind each of the named outputs, past what scales, caps or pads it."""
    for output in graph.outputs:
        node = output.producer() if output.name in outputs else None
        while node is not None and node.op_type in _WORKS_AROUND_PRODUCT:
            node = node.inputs[0].producer() if node.inputs[0] is not None else None
        if node is not None:
            yield node


def constant_products(graph: ir.Graph, excluded: Collection[str] = ()) -> tuple[ir.Node, ...]:
    """Every MatMul or Gemm of rows with a constant floating-point matrix, without those that only feed outputs
    `excluded`.
    """
    left_out = set(products_behind(graph, excluded))
    return tuple(node for node in graph if node not in left_out and _has_constant_matrix(node))


def is_transposed(node: ir.Node) -> bool:
    """Whether the matrix of a constant product is stored [N, K] rather than [K, N]."""
    return node.attributes.get_int("transB", 0) == 1


def _has_constant_matrix(node: ir.Node) -> bool:
    if node.op_type not in ("MatMul", "Gemm") or node.attributes.get_int("transA", 0) != 0:
        return False
    if node.attributes.get_float("alpha", 1.0) != 1.0:
        return False
    matrix = node.inputs[1]
    if matrix is None or matrix.const_value is None or matrix.dtype not in _FLOATING:
        return False
    return len(matrix.const_value.shape) == 2


@dataclass(frozen=True)
class LinearLayer:
    """A product of rows with constant weights; `transposed`: they are stored [N, K]."""

    node: ir.Node
    weights: ir.Value
    transposed: bool

    @property
    def size(self) -> int:
        """K"""
        assert self.weights.const_value is not None
        return int(self.weights.const_value.shape[1 if self.transposed else 0])  # type: ignore[arg-type]

    @property
    def outputs(self) -> int:
        """N"""
        assert self.weights.const_value is not None
        return int(self.weights.const_value.shape[0 if self.transposed else 1])  # type: ignore[arg-type]

    def is_bias(self, value: ir.Value) -> bool:
        """Whether `value` is a constant fp32 number for each output."""
        fits = value.const_value is not None and value.dtype == ir.DataType.FLOAT
        return fits and tuple(value.const_value.shape) == (self.outputs,)  # type: ignore[union-attr]

    def matrix(self) -> NDArray[np.float32]:
        """[N, K]"""
        assert self.weights.const_value is not None
        found = self.weights.const_value.numpy()
        return np.ascontiguousarray(found if self.transposed else found.T)


def linear_layer(node: ir.Node) -> LinearLayer | None:
    """MatMul, or MatMul with its second operand transposed, over a constant fp32 matrix."""
    if node.op_type not in ("MatMul", "FusedMatMul") or len(node.inputs) != 2:
        return None
    return _layer_of(node) if node.attributes.get_float("alpha", 1.0) == 1.0 else None


def any_linear_layer(node: ir.Node) -> LinearLayer | None:
    """As `linear_layer`; also a product that is scaled, and one of rows [n, K] that has its bias with it."""
    if node.op_type not in ("MatMul", "FusedMatMul", "Gemm") or len(node.inputs) < 2:
        return None
    layer = _layer_of(node)
    if layer is None or node.op_type != "Gemm" or len(node.inputs) < 3 or node.inputs[2] is None:
        return layer
    plain = node.attributes.get_float("alpha", 1.0) == node.attributes.get_float("beta", 1.0) == 1.0
    return layer if plain and layer.is_bias(node.inputs[2]) else None


def _layer_of(node: ir.Node) -> LinearLayer | None:
    weights = node.inputs[1]
    if weights is None or weights.const_value is None or weights.dtype != ir.DataType.FLOAT:
        return None
    if len(weights.const_value.shape) != 2:
        return None
    turned = [node.attributes.get_int(key, 0) for key in ("transA", "transBatchA", "transBatchB")]
    return None if any(turned) else LinearLayer(node, weights, is_transposed(node))


def is_table_lookup(node: ir.Node, *, any_ids: bool = False) -> bool:
    """Return whether `node` looks up rows of a constant fp32 matrix by the ids of an input, or by `any_ids`."""
    if node.op_type != "Gather" or node.attributes.get_int("axis", 0) != 0:
        return False
    table, ids = node.inputs[:2]
    if table is None or ids is None or table.const_value is None or table.dtype != ir.DataType.FLOAT:
        return False
    return len(table.const_value.shape) == 2 and (any_ids or ids.name == "input_ids")


def replace_output(node: ir.Node, value: ir.Value) -> None:
    """Every use of the node's output, a graph output included, reads `value`, which takes its name."""
    replace_value(node.outputs[0], value)
    assert node.graph is not None
    node.graph.remove(node, safe=True)


@dataclass(frozen=True)
class Product:
    """A linear layer with what the operator does on top: the node `last` has the result."""

    layer: LinearLayer
    last: ir.Node
    bias: ir.Value | None = None
    activation: str = "none"

    @property
    def factor(self) -> float:
        """What the result is scaled by."""
        return self.layer.node.attributes.get_float("alpha", 1.0)

    @property
    def gated(self) -> bool:
        return self.activation != "none"


def with_bias_and_gate(layer: LinearLayer) -> Product:
    """Return a layer with the bias and the gate behind it."""
    node = layer.node
    if node.attributes.get_float("alpha", 1.0) != 1.0:
        return Product(layer, node)
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    reader = _only_reader(node.outputs[0])
    if bias is None and reader is not None and (bias := _bias(reader, node.outputs[0], layer)) is not None:
        node = reader
        reader = _only_reader(node.outputs[0])
    gate = _gate(reader) if reader is not None and reader.op_type == "Split" else None
    if gate is None:
        return Product(layer, node, bias)
    activation, last = gate
    return Product(layer, last, bias, activation)


def _bias(add: ir.Node, product: ir.Value, layer: LinearLayer) -> ir.Value | None:
    """Return the constant [N] that `add` adds to the product."""
    if add.op_type != "Add":
        return None
    other = next((value for value in add.inputs if value is not product), None)
    return other if other is not None and layer.is_bias(other) else None


def _gate(split: ir.Node) -> tuple[str, ir.Node] | None:
    """Return the activation of the first half and the node that multiplies it with the second."""
    if len(split.outputs) != 2 or not _halves(split):
        return None
    gate, up = split.outputs
    last = _only_reader(up)
    if last is None or last.op_type != "Mul" or last.domain:
        return None
    activated = next((value for value in last.inputs if value is not up), None)
    if activated is None or _only_reader(activated) is not last:
        return None
    name = _activation(activated, gate)
    return None if name is None else (name, last)


def _halves(split: ir.Node) -> bool:
    shape = split.inputs[0].shape if split.inputs[0] is not None else None
    axis = split.attributes.get_int("axis", 0)
    if axis != -1 and (shape is None or axis != len(shape) - 1):
        return False
    if len(split.inputs) < 2 or split.inputs[1] is None:
        return True
    sizes = split.inputs[1].const_value
    return sizes is not None and len(set(sizes.numpy().tolist())) == 1


def _activation(activated: ir.Value, gate: ir.Value) -> str | None:
    """Return what makes `activated` of `gate`, where nothing else reads the gate."""
    node = activated.producer()
    readers = {use.node for use in gate.uses()}
    if node is None or gate.is_graph_output():
        return None
    if node.op_type == "Mul" and gate in node.inputs:
        sigmoid = next((v.producer() for v in node.inputs if v is not None and v is not gate), None)
        if sigmoid is None or sigmoid.op_type != "Sigmoid" or _only_reader(sigmoid.outputs[0]) is None:
            return None
        return "silu" if sigmoid.inputs[0] is gate and readers == {node, sigmoid} else None
    if readers != {node} or len([v for v in node.inputs if v is not None]) != 1:
        return None
    if node.op_type == "Gelu":
        approximate = node.attributes.get_string("approximate", "none")
        return {"none": "gelu", "tanh": "gelu_tanh"}.get(approximate)
    if node.op_type == "FastGelu":
        return "gelu_tanh"
    usual = {"Swish": 1.0, "QuickGelu": 1.702}.get(node.op_type)
    return "silu" if usual is not None and node.attributes.get_float("alpha", usual) == 1.0 else None


def _only_reader(value: ir.Value) -> ir.Node | None:
    """Return the one node that reads `value`; None where several do, or it is an output of the graph."""
    uses = list(value.uses())
    return uses[0].node if len(uses) == 1 and not value.is_graph_output() else None
