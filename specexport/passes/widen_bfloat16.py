"""Converts a bfloat16 graph to float32, so that a CPU can compute it.

ONNX Runtime has few bfloat16 kernels on the CPU. The float32 graph has the same nodes and the same weight values; it
only rounds nothing in between. Used for the parity check, never shipped.
"""

import numpy as np
import onnx_ir as ir

from specexport.passes import GraphPass, PassReport
from specexport.passes.contracts import has_value

_TYPE_ATTRIBUTES = ("to", "dtype", "softmax_precision", "stash_type")


class WidenBfloat16(GraphPass):
    """bfloat16 weights, values and casts become float32."""

    name = "widen-bfloat16"

    def ensures(self, model: ir.Model, report: PassReport) -> str | None:
        return has_value(model, lambda value: value.dtype == ir.DataType.BFLOAT16, "bfloat16")

    def __call__(self, model: ir.Model) -> PassReport:
        graph = model.graph
        values = [*graph.inputs, *graph.initializers.values()]
        changed = sum(_widen_value(value) for value in values)
        for node in graph:
            changed += sum(_widen_value(value) for value in node.outputs)
            changed += sum(_widen_attribute(node, attribute) for attribute in list(node.attributes.values()))
        return PassReport(self.name, changed, () if changed else ("the graph has no bfloat16",))


def _widen_value(value: ir.Value) -> bool:
    if value.dtype != ir.DataType.BFLOAT16:
        return False
    value.type = ir.TensorType(ir.DataType.FLOAT)
    if value.const_value is not None:
        value.const_value = _widen_tensor(value.const_value, value.name)
    return True


def _widen_attribute(node: ir.Node, attribute: ir.Attr) -> bool:
    if attribute.type == ir.AttributeType.INT and attribute.name in _TYPE_ATTRIBUTES:
        if attribute.as_int() != ir.DataType.BFLOAT16:
            return False
        node.attributes[attribute.name] = ir.AttrInt64(attribute.name, int(ir.DataType.FLOAT))
        return True
    if attribute.type == ir.AttributeType.TENSOR and attribute.as_tensor().dtype == ir.DataType.BFLOAT16:
        widened = _widen_tensor(attribute.as_tensor(), attribute.as_tensor().name)
        node.attributes[attribute.name] = ir.AttrTensor(attribute.name, widened)
        return True
    return False


def _widen_tensor(tensor: ir.TensorProtocol, name: str | None) -> ir.TensorProtocol:
    return ir.Tensor(tensor.numpy().astype(np.float32), name=name)
