"""The LM head of a draft path reads the head's weights where they lie, without a packed copy of its own.

ONNX Runtime packs the right operand of each matrix product when it loads a graph, once per node: a second head would
hold the largest matrix of the model once more (SmolLM2-135M: 113 MB). Left operands are not packed. A draft path
judges one row, and for one row the product with its operands changed about reads as much memory.
"""

import onnx_ir as ir

from specexport.passes import PassReport
from specexport.passes.graph_builder import Builder
from specexport.passes.layer_path import DRAFT_PREFIX

_ROWS_LAST = (0, 2, 1)
_BEHIND_THE_HEAD = ("Mul", "Div", "Tanh", "Cast")  # scales and soft-caps


class ShareHeadWeights:
    name = "share-head-weights"
    requires = "the canonical operators; a draft path, run with one row"
    ensures = "no matrix product of draft_logits has the head's weights as its right operand where it fired"

    def __call__(self, model: ir.Model) -> PassReport:
        graph = model.graph
        output = next((v for v in graph.outputs if v.name == f"{DRAFT_PREFIX}logits"), None)
        if output is None:
            return PassReport(self.name, 0, ("the graph has no draft path",))
        product = _head(output)
        weights = _untransposed(product.inputs[1]) if product is not None else None
        if product is None or weights is None:
            return PassReport(
                self.name, 0, ("the head is no product with a transposed [vocab, hidden] matrix",)
            )
        build = Builder(graph, "draft_head")
        columns = build.add("Transpose", [product.inputs[0]], perm=_ROWS_LAST)  # [B, hidden, R]
        scores = build.add("MatMul", [weights, columns])  # [B, vocab, R]
        logits = build.add("Transpose", [scores], perm=_ROWS_LAST)
        old = product.outputs[0]
        name, logits.shape, logits.type = old.name, old.shape, old.type
        old.name, logits.name = f"{name}_packed", name
        old.replace_all_uses_with(logits, replace_graph_outputs=True)
        graph.remove(product, safe=True)
        graph.sort()
        return PassReport(self.name, 1)


def _head(logits: ir.Value) -> ir.Node | None:
    node = logits.producer()
    while node is not None and node.op_type in _BEHIND_THE_HEAD:
        node = node.inputs[0].producer() if node.inputs[0] is not None else None
    return node if node is not None and node.op_type == "MatMul" else None


def _untransposed(value: ir.Value | None) -> ir.Value | None:
    """W [vocab, hidden] of a value that is its transpose."""
    node = value.producer() if value is not None else None
    if node is None or node.op_type != "Transpose" or tuple(node.attributes.get_ints("perm", ())) != (1, 0):
        return None
    return node.inputs[0]
