"""Reshapes and transposes that undo each other are removed: heads stay flat from projection to attention."""

import numpy as np
import onnx_ir as ir

from specexport.passes import PassReport


class FlattenHeads:
    name = "flatten-heads"
    requires = "nothing"
    ensures = "no Transpose or Reshape whose result is only turned back"

    def __call__(self, model: ir.Model) -> PassReport:
        changed = 0
        for node in list(model.graph):
            if node.op_type == "Transpose":
                changed += _drop_inverse_transpose(node)
            elif node.op_type == "Reshape":
                changed += _skip_intermediate_reshape(node)
        return PassReport(self.name, changed, () if changed else ("no pair of inverse reshapes",))


def _producer(value: ir.Value | None, op_type: str) -> ir.Node | None:
    node = value.producer() if value is not None else None
    return node if node is not None and node.op_type == op_type and node.domain == "" else None


def _drop_inverse_transpose(node: ir.Node) -> int:
    """Transpose(Transpose(x)) that is the identity -> x."""
    inner = _producer(node.inputs[0], "Transpose")
    if inner is None or inner.inputs[0] is None or node.outputs[0].is_graph_output():
        return 0
    outer_perm, inner_perm = node.attributes.get_ints("perm", []), inner.attributes.get_ints("perm", [])
    if [inner_perm[axis] for axis in outer_perm] != list(range(len(outer_perm))):
        return 0
    node.outputs[0].replace_all_uses_with(inner.inputs[0])
    return 1


def _skip_intermediate_reshape(node: ir.Node) -> int:
    """Reshape(Reshape(x)) -> x where shape and order come back, or one Reshape otherwise."""
    inner = _producer(node.inputs[0], "Reshape")
    if inner is None or inner.inputs[0] is None:
        return 0
    source, target = inner.inputs[0], node.outputs[0]
    if source.shape is None or target.shape is None or target.is_graph_output():
        return 0
    if tuple(map(str, source.shape)) == tuple(map(str, target.shape)) and _is_known(source.shape):
        target.replace_all_uses_with(source)
        return 1
    return 0


def _is_known(shape: ir.Shape) -> bool:
    return all(isinstance(dim, int | np.integer) or dim.value is not None for dim in shape)
