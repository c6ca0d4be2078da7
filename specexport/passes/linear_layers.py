"""Which products of a graph are linear layers, and which of them make the outputs that people read.

Owns the question only; what becomes of a layer is for the passes to say.
"""

from collections.abc import Collection, Iterator

import onnx_ir as ir

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
