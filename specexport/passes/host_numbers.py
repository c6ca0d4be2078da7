"""Numbers that ONNX Runtime has no kernels for on the CPU become float32. Used to measure, never shipped.

It has no FP4 kernels there, nor TensorRT's quantizer of rows, and it rounds the rows that meet INT4 weights to 8 bits,
which an engine does not. So stored weights become the numbers they stand for, and the quantizer of rows the same
arithmetic in plain operators: a scale in 8 bits for each block of a row, values to the nearest of +-{0, 0.5, 1, 1.5, 2,
3, 4, 6}, ties to even.

It has few bfloat16 kernels. The float32 graph has the same nodes and the same weight values; it only rounds nothing in
between.
"""

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes.common import RemoveUnusedNodesPass

from specexport.passes import GraphPass, PassReport, has_value, nodes_of
from specexport.passes.graph_builder import Builder

_FLOAT = ir.DataType.FLOAT
_FP8 = ir.DataType.FLOAT8E4M3FN
FOUR_BITS = (ir.DataType.FLOAT4E2M1, ir.DataType.INT4)
_LARGEST = 6.0
_SCALE_BOUNDS = (2.0**-9, 448.0)
_TYPE_ATTRIBUTES = ("to", "dtype", "softmax_precision", "stash_type")


class EmulateFourBits(GraphPass):
    """No product of 4-bit numbers is left, and no operator of TensorRT's."""

    name = "emulate-four-bits"

    def ensures(self, model: ir.Model, report: PassReport) -> str | None:
        for node in nodes_of(model, "DequantizeLinear"):
            source = node.inputs[0] if node.inputs else None
            if source is not None and source.dtype in FOUR_BITS:
                return f"{node.name} reads numbers of 4 bits"
        foreign = next((node for node in model.graph if node.domain == "trt"), None)
        return None if foreign is None else f"{foreign.name} is an operator of TensorRT's"

    def __call__(self, model: ir.Model) -> PassReport:
        graph = model.graph
        build = Builder(graph, "emulated")
        changed = 0
        for node in list(graph):
            if node.op_type != "DequantizeLinear" or not node.inputs:
                continue
            source = node.inputs[0]
            if source is None or source.dtype not in FOUR_BITS:
                continue
            quantizer = source.producer()
            value = _constant(build, node) if quantizer is None else _rounded(build, node, quantizer)
            value.shape = node.outputs[0].shape
            node.outputs[0].replace_all_uses_with(value, replace_graph_outputs=True)
            graph.remove(node, safe=True)
            changed += 1
        graph.sort()
        RemoveUnusedNodesPass()(model)  # quantizers of rows whose results are computed otherwise now
        return PassReport(self.name, changed, () if changed else ("the graph has no 4-bit weights",))


def _constant(build: Builder, node: ir.Node) -> ir.Value:
    """Return the weights that `node` dequantises, in the type it gives them."""
    values, scales = node.inputs[:2]
    assert values is not None and scales is not None and values.const_value is not None
    axis, block = node.attributes.get_int("axis", 1), node.attributes.get_int("block_size", 0)
    factors = np.repeat(_scales(scales), block, axis=axis)
    found = values.const_value.numpy().astype(np.float32) * factors
    assert node.outputs[0].dtype is not None
    return build.constant(found.astype(node.outputs[0].dtype.numpy()))


def _scales(scales: ir.Value) -> NDArray[np.float32]:
    """Scales that are constant, or constants in 8 bits under a scale of their own."""
    if scales.const_value is not None:
        return np.asarray(scales.const_value.numpy(), np.float32)
    double = scales.producer()
    assert double is not None
    stored, scale = (value.const_value for value in double.inputs[:2] if value is not None)
    assert stored is not None and scale is not None
    return np.asarray(stored.numpy().astype(np.float32) * scale.numpy(), np.float32)


def _rounded(build: Builder, node: ir.Node, quantizer: ir.Node) -> ir.Value:
    """[.., K] float32: what `quantizer` and the dequantisation `node` make of a window's rows."""
    rows, scale = quantizer.inputs[:2]
    assert rows is not None and scale is not None
    block = node.attributes.get_int("block_size", 0)
    wide = build.add("Cast", [rows], _FLOAT, to=int(_FLOAT))
    blocks = build.add("Reshape", [wide, build.constant(np.array([-1, block]))])
    largest = build.add("ReduceMax", [build.add("Abs", [blocks]), build.constant(np.array([1]))], keepdims=1)
    wanted = build.add("Div", [largest, build.add("Mul", [scale, _number(build, _LARGEST)])])
    low, high = (_number(build, bound) for bound in _SCALE_BOUNDS)
    stored = build.add("Cast", [build.add("Clip", [wanted, low, high])], _FP8, to=int(_FP8))
    step = build.add("Mul", [build.add("Cast", [stored], _FLOAT, to=int(_FLOAT)), scale])
    levels = _nearest(build, build.add("Div", [blocks, step]))
    return build.add(
        "Reshape", [build.add("Mul", [levels, step]), build.add("Shape", [rows], ir.DataType.INT64)]
    )


def _nearest(build: Builder, levels: ir.Value) -> ir.Value:
    """Return the nearest FP4 value: multiples of 0.5 below 2, of 1 below 4, of 2 up to 6; ties to the even code."""
    size = build.add("Abs", [levels])
    grid = build.add(
        "Where",
        [
            build.add("Less", [size, _number(build, 2.0)], ir.DataType.BOOL),
            _number(build, 0.5),
            build.add(
                "Where",
                [
                    build.add("Less", [size, _number(build, 4.0)], ir.DataType.BOOL),
                    _number(build, 1.0),
                    _number(build, 2.0),
                ],
                _FLOAT,
            ),
        ],
        _FLOAT,
    )
    found = build.add("Mul", [build.add("Round", [build.add("Div", [levels, grid])]), grid])
    return build.add("Clip", [found, _number(build, -_LARGEST), _number(build, _LARGEST)])


def _number(build: Builder, value: float) -> ir.Value:
    return build.constant(np.array(value, np.float32))


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
