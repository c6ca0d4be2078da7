"""Linear layers over weights in fewer bits, in the operators that TensorRT fuses with the product.

Which nodes stand for which format follows ModelOpt's own ONNX exporters; the numbers come from `quantise`.
"""

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from specexport.passes import PassReport
from specexport.passes.graph_builder import Builder
from specexport.passes.linear_layers import LOGITS, constant_products, is_transposed
from specexport.tensorrt.weights.numbers import NVFP4_BLOCK, Fp8Linear, Int4Linear, Linear, Nvfp4Linear

KEPT_OUTPUTS = (*LOGITS, "features")
"""Products that stay in the precision of the graph: the LM head, as in ModelOpt's defaults, and a draft's features."""

TENSORRT_DOMAIN = "trt"
DYNAMIC_FP4 = "TRT_FP4DynamicQuantize"
_FLOAT = ir.DataType.FLOAT
_FP8 = ir.DataType.FLOAT8E4M3FN
_FP4 = ir.DataType.FLOAT4E2M1


def stored_layers(graph: ir.Graph) -> tuple[ir.Node, ...]:
    """The linear layers whose weights an engine stores in fewer bits."""
    return constant_products(graph, KEPT_OUTPUTS)


class StoreEngineWeights:
    name = "store-engine-weights"
    requires = "linear layers over constant matrices in fp16 or bf16"
    ensures = "they read dequantised weights; what rounds a row depends on that row alone"

    def __init__(self, layers: Mapping[str, Linear], made_by: str) -> None:
        """`layers` by node name; `made_by` is for the report."""
        self._layers = layers
        self._made_by = made_by

    def __call__(self, model: ir.Model) -> PassReport:
        graph = model.graph
        build = Builder(graph, "stored")
        rounded: dict[tuple[ir.Value, bytes], ir.Value] = {}  # rows that several layers read alike
        nodes = stored_layers(graph)
        for node in nodes:
            assert node.name is not None
            rows, matrix = node.inputs[0], node.inputs[1]
            assert rows is not None and matrix is not None and rows.dtype is not None
            layer = self._layers[node.name]
            key = (rows, _rounding(layer))
            if key not in rounded:
                rounded[key] = _round_rows(build, rows, layer)
            node.replace_input_with(0, rounded[key])
            node.replace_input_with(1, _expand(build, layer, rows.dtype, is_transposed(node)))
        graph.sort()
        if any(node.domain == TENSORRT_DOMAIN for node in graph):
            model.opset_imports.setdefault(TENSORRT_DOMAIN, 1)
        return PassReport(self.name, len(nodes), (self._made_by,))


def _rounding(layer: Linear) -> bytes:
    factors = layer.factors if isinstance(layer, Int4Linear) else layer.input_scale
    return factors.tobytes()


def _round_rows(build: Builder, rows: ir.Value, layer: Linear) -> ir.Value:
    """[.., K] as the product reads them."""
    assert rows.dtype is not None
    if isinstance(layer, Int4Linear):
        return build.add("Mul", [rows, build.constant(layer.factors)])
    scale = build.constant(layer.input_scale)
    if isinstance(layer, Fp8Linear):
        zero = build.constant(np.zeros((), _FP8.numpy()))
        values = build.add("QuantizeLinear", [rows, scale, zero], _FP8)
        return build.add("DequantizeLinear", [values, scale, zero], rows.dtype)
    values, scales = _dynamic_fp4(build, rows, scale)
    found = build.add(
        "DequantizeLinear",
        [values, build.add("DequantizeLinear", [scales, scale], _FLOAT)],
        _FLOAT,
        axis=-1,
        block_size=NVFP4_BLOCK,
    )
    return build.add("Cast", [found], rows.dtype, to=int(rows.dtype))


def _dynamic_fp4(build: Builder, rows: ir.Value, scale: ir.Value) -> tuple[ir.Value, ir.Value]:
    """TensorRT's own operator: 4-bit values, and a scale for each block of a row under the scale of all."""
    values, scales = build.add_outputs(
        DYNAMIC_FP4,
        [rows, scale],
        (_FP4, _FP8),
        TENSORRT_DOMAIN,
        axis=-1,
        block_size=NVFP4_BLOCK,
        scale_type=int(_FP8),
    )
    return values, scales


def _expand(build: Builder, layer: Linear, dtype: ir.DataType, transposed: bool) -> ir.Value:
    """The matrix in `dtype`, [N, K] where `transposed`, else [K, N]."""
    if isinstance(layer, Nvfp4Linear):
        scales = build.add(
            "DequantizeLinear", [build.constant(layer.block_scales), build.constant(layer.scale)], _FLOAT
        )
        found = build.add(
            "DequantizeLinear",
            [build.constant(layer.values), scales],
            _FLOAT,
            axis=1,
            block_size=NVFP4_BLOCK,
        )
        found = build.add("Cast", [found], dtype, to=int(dtype))
        return found if transposed else build.add("Transpose", [found], perm=(1, 0))
    values = layer.values if transposed else np.ascontiguousarray(layer.values.T)
    if isinstance(layer, Fp8Linear):
        return build.add("DequantizeLinear", [build.constant(values), build.constant(layer.scale)], dtype)
    scales_of = layer.scales if transposed else np.ascontiguousarray(layer.scales.T)
    return build.add(
        "DequantizeLinear",
        [build.constant(values), build.constant(scales_of)],
        dtype,
        axis=1 if transposed else 0,
        block_size=layer.block,
    )
