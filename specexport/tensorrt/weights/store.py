"""Linear layers over weights in fewer bits, in the operators that TensorRT fuses with the product.

Which nodes stand for which format follows ModelOpt's own ONNX exporters; the numbers come from `quantise`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from specexport.passes import GraphPass, PassReport
from specexport.passes.graph_builder import Builder
from specexport.passes.linear_layers import LOGITS, constant_products, is_transposed

NVFP4_BLOCK = 16
"""Neighbouring numbers that share a scale; the format has no other."""

_Array = NDArray[Any]


@dataclass(frozen=True)
class Fp8Linear:
    """weight = value * scale, rows likewise with `input_scale`: one scale for all rows, fixed at build.

    `values` [N, K] float8_e4m3fn; the scales are scalars in the precision of the graph.
    """

    values: _Array
    scale: _Array
    input_scale: _Array

    def dequantised(self) -> NDArray[np.float32]:
        """[N, K]"""
        found: NDArray[np.float32] = self.values.astype(np.float32) * self.scale.astype(np.float32)
        return found


@dataclass(frozen=True)
class Int4Linear:
    """weight = value * scale, block by block; rows are multiplied with `factors` first and stay in their precision.

    `values` [N, K] int4; `scales` [N, K / block] and `factors` [K] in the precision of the graph.
    """

    values: _Array
    scales: _Array
    factors: _Array
    block: int

    def dequantised(self) -> NDArray[np.float32]:
        """[N, K], of rows that were multiplied with `factors`."""
        scales = np.repeat(self.scales.astype(np.float32), self.block, axis=1)
        found: NDArray[np.float32] = self.values.astype(np.float32) * scales
        return found


@dataclass(frozen=True)
class Nvfp4Linear:
    """weight = value * block scale * scale. Rows get block scales of their own at run time, under `input_scale`.

    `values` [N, K] float4_e2m1fn; `block_scales` [N, K / 16] float8_e4m3fn; the scales are float32 scalars.
    """

    values: _Array
    block_scales: _Array
    scale: NDArray[np.float32]
    input_scale: NDArray[np.float32]

    def dequantised(self) -> NDArray[np.float32]:
        """[N, K]"""
        scales = np.repeat(self.block_scales.astype(np.float32), NVFP4_BLOCK, axis=1) * self.scale
        found: NDArray[np.float32] = self.values.astype(np.float32) * scales
        return found


Linear = Fp8Linear | Int4Linear | Nvfp4Linear


def smallest_scale(dtype: np.dtype[np.generic]) -> float:
    """Return the least scale a graph of `dtype` may hold; what is divided by it stays a number."""
    return float(ml_dtypes.finfo(dtype).smallest_subnormal)  # type: ignore[no-untyped-call]


KEPT_OUTPUTS = (*LOGITS, "features")
"""Products that stay in the precision of the graph: the LM head, as in ModelOpt's defaults, and a draft's features."""

TENSORRT_DOMAIN = "trt"
DYNAMIC_FP4 = "TRT_FP4DynamicQuantize"
_FLOAT = ir.DataType.FLOAT
_FP8 = ir.DataType.FLOAT8E4M3FN
_FP4 = ir.DataType.FLOAT4E2M1


def stored_layers(graph: ir.Graph) -> tuple[ir.Node, ...]:
    """Return the linear layers whose weights an engine stores in fewer bits."""
    return constant_products(graph, KEPT_OUTPUTS)


class StoreEngineWeights(GraphPass):
    """Linear layers read dequantised weights; what rounds a row depends on that row alone."""

    name = "store-engine-weights"

    def __init__(self, layers: Mapping[str, Linear], made_by: str) -> None:
        """`layers` by node name; `made_by` is for the report."""
        self._layers = layers
        self._made_by = made_by

    def requires(self, model: ir.Model) -> str | None:
        unknown = (node.name for node in stored_layers(model.graph) if node.name not in self._layers)
        left = next(unknown, None)
        return None if left is None else f"nothing is known of the layer {left}"

    def ensures(self, model: ir.Model, report: PassReport) -> str | None:
        left = stored_layers(model.graph)
        return f"{left[0].name} reads plain weights" if left else None

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
    """Return the matrix in `dtype`, [N, K] where `transposed`, else [K, N]."""
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
