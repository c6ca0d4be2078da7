"""Products, tables and attention become the operators of `specruntime_kernels`, whose rows depend on no other row.

A row has the same bits at every width of a window. Runs on a graph that was fused for ONNX Runtime; what the operators
cannot do stays as it is, and `stock_reasons` names it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes.common import RemoveUnusedNodesPass

from specexport.graph.plan import LinearPlan, WeightPlan, WindowPlan
from specexport.passes import (
    FUSED_DOMAIN,
    GraphPass,
    PassReport,
    first_of,
    has_node,
    lacks_inputs,
    nodes_of,
)
from specexport.passes.attention_rotary import POSITIONS
from specexport.passes.graph_builder import Builder, replace_value
from specexport.passes.group_query_attention import QUERY_LENGTHS
from specexport.passes.linear_layers import (
    LOGITS,
    Product,
    any_linear_layer,
    is_table_lookup,
    products_behind,
    replace_output,
    with_bias_and_gate,
)
from specexport.passes.packed_weights import PackedMatrix, pack_blocks, pack_channels, pack_numbers
from specexport.passes.weight_blocks import quantise_blocks, quantise_channels
from specruntime.manifest.graph import SCALE_BYTES

DOMAIN = "specruntime"
_Matrix = Callable[[], NDArray[np.float32]]
_WINDOW_MASK, _CACHE_LENGTH = "window_mask", "cache_length"
_PREFIX = "window"
_BITS = {"int8": 8, "int4": 4}
_COS, _SIN = 7, 8
_COPIED = (
    "num_heads",
    "kv_num_heads",
    "scale",
    "softcap",
    "local_window_size",
    "do_rotary",
    "rotary_interleaved",
)
_PRODUCTS = (
    "MatMul",
    "FusedMatMul",
    "Gemm",
    "MatMulNBits",
    "MatMulInteger",
    "MatMulIntegerToFloat",
    "Einsum",
    "Conv",
)
_ATTENTIONS = ("Attention", "GroupQueryAttention", "MultiHeadAttention")


class AttendInWindows(GraphPass):
    """Where it fires: attention over the caches in place, by window_mask and positions where windows may be trees."""

    name = "attend-in-windows"

    def __init__(self, plan: WindowPlan, *, trees: bool) -> None:
        self._plan, self._trees = plan, trees

    def requires(self, model: ir.Model) -> str | None:
        if next(nodes_of(model, "GroupQueryAttention", FUSED_DOMAIN), None) is None:
            return None
        tree_inputs = (_WINDOW_MASK, POSITIONS) if self._trees else ()
        return lacks_inputs(model, _CACHE_LENGTH, QUERY_LENGTHS, *tree_inputs)

    def ensures(self, model: ir.Model, report: PassReport) -> str | None:
        caches = [value for value in model.graph.inputs if (value.name or "").startswith("past_")]
        kind = ir.DataType.INT8 if self._plan.cache == "int8" and report.changed else ir.DataType.FLOAT
        wrong = next((value.name for value in caches if value.dtype != kind), None)
        return first_of(
            has_node(model, "GroupQueryAttention", FUSED_DOMAIN),
            None if wrong is None else f"the cache {wrong} is not {kind}",
        )

    def __call__(self, model: ir.Model) -> PassReport:
        graph = model.graph
        nodes = list(nodes_of(model, "GroupQueryAttention", FUSED_DOMAIN))
        inputs = {value.name: value for value in graph.inputs}
        tree = (inputs[POSITIONS], inputs[_WINDOW_MASK]) if nodes and self._trees else (None, None)
        for node in nodes:
            self._rewrite(graph, node, (inputs[_CACHE_LENGTH], inputs[QUERY_LENGTHS]), tree)
        RemoveUnusedNodesPass()(model)  # the lengths as the other operator takes them
        if nodes:
            model.opset_imports.setdefault(DOMAIN, self._plan.operators)
        return PassReport(self.name, len(nodes), () if nodes else ("no GroupQueryAttention",))

    def _rewrite(
        self,
        graph: ir.Graph,
        node: ir.Node,
        lengths: tuple[ir.Value, ir.Value],
        tree: tuple[ir.Value | None, ir.Value | None],
    ) -> None:
        rotary = [node.inputs[index] if index < len(node.inputs) else None for index in (_COS, _SIN)]
        attributes = {name: node.attributes[name].value for name in _COPIED if name in node.attributes}
        attention = ir.node(
            "WindowAttention",
            [*node.inputs[:5], *lengths, *rotary, *tree],
            attributes={**attributes, "cache": self._plan.cache},
            domain=DOMAIN,
            num_outputs=3,
            name=f"{_PREFIX}_{node.name}",
        )
        graph.insert_before(node, attention)
        for old, new in zip(node.outputs, attention.outputs, strict=True):
            replace_value(old, new)
        graph.remove(node, safe=True)
        if self._plan.cache == "int8":
            for cache in (*attention.inputs[3:5], *attention.outputs[1:]):
                assert cache is not None and cache.shape is not None
                if cache.dtype == ir.DataType.INT8:  # a draft path reads it too
                    continue
                cache.type = ir.TensorType(ir.DataType.INT8)
                cache.shape = ir.Shape([*cache.shape[:-1], int(cache.shape[-1]) + SCALE_BYTES])  # type: ignore[arg-type]


class MultiplyInWindows(GraphPass):
    """Every linear layer is one operator over packed weights, with its bias and gate; tables are read from the same."""

    name = "multiply-in-windows"

    def __init__(self, weights: WeightPlan | None, plan: WindowPlan) -> None:
        self._weights, self._plan = weights, plan

    def requires(self, model: ir.Model) -> str | None:
        half = next((node for node in model.graph if _is_half(node)), None)
        return None if half is None else f"the weights of {half.name} are not fp32"

    def ensures(self, model: ir.Model, report: PassReport) -> str | None:
        left = next((node for node in model.graph if any_linear_layer(node) is not None), None)
        return None if left is None else f"{left.name} is a linear layer"

    def __call__(self, model: ir.Model) -> PassReport:
        graph = model.graph
        build = Builder(graph, _PREFIX)
        products = [
            with_bias_and_gate(layer) for node in graph if (layer := any_linear_layer(node)) is not None
        ]
        tables = [node for node in graph if is_table_lookup(node, any_ids=True)]
        store = _Store(
            build, graph, self._weights, {node.inputs[0] for node in tables if node.inputs[0] is not None}
        )
        store.heads = {
            p.layer.weights for p in products if p.layer.node in set(products_behind(graph, LOGITS))
        }
        for product in products:
            replace_output(product.last, _multiply(build, product, *store.layer(product)))
        read = [node for node in tables if store.serves(node)]
        for node in read:
            weights = store.table(node)
            replace_output(
                node,
                build.add(
                    "WindowEmbedding", [node.inputs[1], weights.value], ir.DataType.FLOAT, DOMAIN,
                    **weights.matrix.attributes(),
                ),
            )  # fmt: skip
        graph.sort()
        RemoveUnusedNodesPass()(model)
        changed = len(products) + len(read)
        if changed:
            model.opset_imports.setdefault(DOMAIN, self._plan.operators)
        return PassReport(
            self.name, changed, store.summary() if changed else ("no linear layer over constant weights",)
        )


@dataclass(frozen=True)
class _Stored:
    value: ir.Value
    matrix: PackedMatrix


def _multiply(build: Builder, product: Product, weights: _Stored, rounding: str) -> ir.Value:
    bias = [product.bias] if product.bias is not None else []
    result = build.add(
        "WindowMatMul",
        [product.layer.node.inputs[0], weights.value, *bias],
        ir.DataType.FLOAT,
        DOMAIN,
        **weights.matrix.attributes(),
        rows=rounding,
        activation=product.activation,
    )
    if product.factor == 1.0:
        return result
    return build.add("Mul", [result, build.constant(np.array(product.factor, np.float32))])


class _Store:
    """The packed weights of a graph: each matrix once, however many layers and tables read it."""

    def __init__(
        self, build: Builder, graph: ir.Graph, weights: WeightPlan | None, looked_up: set[ir.Value]
    ) -> None:
        self._build, self._graph, self._weights, self._looked_up = build, graph, weights, looked_up
        self._known: dict[tuple[ir.Value, bool], _Stored] = {}
        self.heads: set[ir.Value] = set()

    def layer(self, product: Product) -> tuple[_Stored, str]:
        """Return the weights of a layer, and how the rows that meet them are rounded."""
        weights = product.layer.weights
        plan = self._plan(weights)
        stored = self._stored(weights, plan, product.layer.matrix, gated=product.gated)
        return stored, "float" if stored.matrix.format not in _BITS else plan.activations

    def serves(self, node: ir.Node) -> bool:
        """Whether a table is read from packed weights: by the ids of the window, or shared with a layer."""
        table = node.inputs[0]
        assert table is not None
        return is_table_lookup(node) or (table, False) in self._known

    def table(self, node: ir.Node) -> _Stored:
        """Return the rows of a table of embeddings: the head's bytes where both are one matrix."""
        table = node.inputs[0]
        assert table is not None and table.const_value is not None
        head = self._weights.lm_head if self._weights is not None else LinearPlan("fp32")
        return self._stored(table, LinearPlan(head.format), table.const_value.numpy, gated=False)

    def summary(self) -> tuple[str, ...]:
        """Return how many matrices have which format, and how many bytes all of them are."""
        formats: dict[str, int] = {}
        for stored in self._known.values():
            formats[stored.matrix.format] = formats.get(stored.matrix.format, 0) + 1
        size = sum(stored.matrix.content.nbytes for stored in self._known.values())
        counts = ", ".join(f"{count} in {name}" for name, count in sorted(formats.items()))
        return (f"{len(self._known)} packed matrices of {size / 1e6:.1f} MB: {counts}",)

    def _plan(self, weights: ir.Value) -> LinearPlan:
        if self._weights is None:
            return LinearPlan("fp32")
        return self._weights.lm_head if weights in self.heads else self._weights.linear

    def _stored(self, weights: ir.Value, plan: LinearPlan, matrix: _Matrix, *, gated: bool) -> _Stored:
        if (weights, gated) not in self._known:
            packed = self._pack(weights, plan, matrix, gated=gated)
            name = f"{weights.name}.{'gated' if gated else 'packed'}"
            tensor = ir.tensor(packed.content, name=name)
            value = ir.Value(
                name=name,
                type=ir.TensorType(tensor.dtype),
                shape=ir.Shape(packed.content.shape),
                const_value=tensor,
            )
            self._graph.register_initializer(value)
            self._known[weights, gated] = _Stored(value, packed)
        return self._known[weights, gated]

    def _pack(self, weights: ir.Value, plan: LinearPlan, matrix: _Matrix, *, gated: bool) -> PackedMatrix:
        numbers = matrix()
        if self._weights is None or plan.format == "fp32":
            return pack_numbers(numbers, gated=gated)
        if plan.activations == "rows":
            return pack_channels(*quantise_channels(numbers), gated=gated)
        # In 8 bits a table's blocks have no minimum in the plain graph: the numbers of both graphs are the same.
        minima = plan.format == "int4" or weights not in self._looked_up
        blocks = quantise_blocks(numbers, _BITS[plan.format], self._weights.block, minima=minima)
        return pack_blocks(blocks, numbers.shape[1], gated=gated)


def stock_reasons(model: ir.Model) -> tuple[str, ...]:
    """Name the products and attentions of rows that are not the operators' own: their rows may depend on the width."""
    reasons = []
    for node in model.graph:
        if node.op_type in _ATTENTIONS:
            reasons.append(f"{node.name}: {node.op_type} stays an operator of ONNX Runtime")
        elif node.op_type in _PRODUCTS and not _is_elementwise(node):
            reasons.append(
                f"{node.name}: {node.op_type} is not a product of rows with a constant fp32 matrix"
            )
        elif node.op_type in ("Loop", "Scan", "If"):
            reasons.append(f"{node.name}: {node.op_type} has a graph of its own")
    return tuple(reasons)


def _is_half(node: ir.Node) -> bool:
    weights = node.inputs[1] if node.op_type == "MatMul" else None
    half = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
    return weights is not None and weights.const_value is not None and weights.dtype in half


def _is_elementwise(node: ir.Node) -> bool:
    """Whether a product sums over one number only, as that of positions with frequencies does."""
    if node.op_type not in ("MatMul", "FusedMatMul"):
        return False
    shape = node.inputs[0].shape if node.inputs[0] is not None else None
    return shape is not None and shape[-1] == 1
