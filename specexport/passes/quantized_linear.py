"""One linear layer over integer weights: the nodes that multiply a window's rows with them.

Every scale of the activations belongs to one row (or a block of one row), so no row depends on another. Owns the
operators and their inputs; which layers become what is `quantize_weights`' to say.
"""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from specexport.graph.plan import LinearPlan
from specexport.passes.graph_builder import Builder
from specexport.passes.weight_blocks import (
    BlockWeights,
    packed_nibbles,
    quantise_blocks,
    quantise_channels,
)

_MICROSOFT = "com.microsoft"
_INT8_ARITHMETIC = 4  # of MatMulNBits' accuracy levels: activations in int8, a scale per row and block
_BITS = {"int8": 8, "int4": 4}
_SMALLEST = np.array(1e-30, np.float32)  # a row of zeros has no scale of its own


@dataclass(frozen=True)
class StoredWeights:
    """A weight matrix in the graph, quantised once however many layers read it; `size` is K, `outputs` is N."""

    size: int
    outputs: int
    plan: LinearPlan
    block: int
    blocks: BlockWeights | None
    tensors: dict[str, ir.Value]

    @property
    def exact(self) -> float:
        """Share of the blocks that hold the checkpoint's own numbers."""
        return self.blocks.exact if self.blocks is not None else 0.0

    @property
    def rounded(self) -> bool:
        """Whether weights went to the nearest integer of a grid that is not the checkpoint's own."""
        return self.blocks is None or self.blocks.rounded


def store_weights(
    build: Builder, weights: NDArray[np.float32], plan: LinearPlan, block: int, *, minima: bool = True
) -> StoredWeights:
    """Add the initializers of `weights` [N, K]. `minima`: False for a table whose rows are looked up as well."""
    outputs, size = weights.shape
    if plan.activations == "rows":
        channels, scales = quantise_channels(weights)
        tensors = {
            "values": build.constant(np.ascontiguousarray(channels.T)),
            "scales": build.constant(scales),
        }
        return StoredWeights(size, outputs, plan, block, None, tensors)
    found = quantise_blocks(weights, _BITS[plan.format], block, minima=minima)
    values = found.values if found.bits == 8 else packed_nibbles(found.values)
    tensors = {"values": build.constant(values), "scales": build.constant(found.scales)}
    if found.zeros is not None:
        tensors["zeros"] = build.constant(found.zeros)
    if found.minimum is not None:
        tensors["minimum"] = build.constant(np.ascontiguousarray(found.minimum.T))
    return StoredWeights(size, outputs, plan, found.block, found, tensors)


def multiply(build: Builder, rows: ir.Value, weights: StoredWeights) -> ir.Value:
    """rows [B, W, K] float32 times the weights: [B, W, N]."""
    if weights.plan.activations == "rows":
        return _by_row_scales(build, rows, weights)
    fine = weights.plan.activations == "fine"
    product = _in_two_planes(build, rows, weights) if fine else _by_blocks(build, rows, weights)
    if "minimum" not in weights.tensors:
        return product
    sums = build.add(
        "ReduceSum", [_blocks_of(build, rows, weights), build.constant(np.array([3]))], keepdims=0
    )
    return build.add("Add", [product, build.add("MatMul", [sums, weights.tensors["minimum"]])])


def look_up(build: Builder, ids: ir.Value, weights: StoredWeights) -> ir.Value:
    """Rows of the table by id: ids [B, W] give [B, W, K], from the same integers as the LM head multiplies with."""
    assert weights.blocks is not None and weights.blocks.bits == 8
    scales = build.constant(weights.blocks.scales[..., None])
    zeros = [] if weights.blocks.zeros is None else [build.constant(weights.blocks.zeros[..., None])]
    found = build.add(
        "GatherBlockQuantized",
        [weights.tensors["values"], ids, scales, *zeros],
        ir.DataType.FLOAT,
        _MICROSOFT,
        bits=8,
        block_size=weights.block,
        gather_axis=0,
        quantize_axis=2,
    )
    return build.add("Reshape", [found, build.constant(np.array([0, 0, weights.size]))])


def _by_blocks(build: Builder, rows: ir.Value, weights: StoredWeights) -> ir.Value:
    assert weights.blocks is not None
    stored = weights.tensors
    zeros = [stored["zeros"]] if "zeros" in stored else []
    return build.add(
        "MatMulNBits",
        [rows, stored["values"], stored["scales"], *zeros],
        rows.dtype,
        _MICROSOFT,
        K=weights.size,
        N=weights.outputs,
        bits=weights.blocks.bits,
        block_size=weights.block,
        accuracy_level=_INT8_ARITHMETIC,
    )


def _blocks_of(build: Builder, rows: ir.Value, weights: StoredWeights) -> ir.Value:
    """[B, W, K] -> [B, W, blocks, block]"""
    return build.add("Reshape", [rows, build.constant(np.array([0, 0, -1, weights.block]))])


def _in_two_planes(build: Builder, rows: ir.Value, weights: StoredWeights) -> ir.Value:
    """Multiply in two planes: what rounding to 8 bits leaves out of a row is a second row of the window."""
    blocks = _blocks_of(build, rows, weights)
    largest = build.add("ReduceMax", [build.add("Abs", [blocks]), build.constant(np.array([3]))], keepdims=1)
    step = build.add("Mul", [largest, build.constant(np.array(1 / 127, np.float32))])
    step = build.add("Max", [step, build.constant(_SMALLEST)])
    coarse = build.add("Mul", [build.add("Round", [build.add("Div", [blocks, step])]), step])
    coarse = build.add("Reshape", [coarse, build.constant(np.array([0, 0, weights.size]))])
    both = build.concat([coarse, build.add("Sub", [rows, coarse])], axis=1)
    return build.add("Add", _halves(build, _by_blocks(build, both, weights)))


def _halves(build: Builder, value: ir.Value) -> list[ir.Value]:
    """[B, 2W, N] -> two of [B, W, N]"""
    width = build.size(value, 1)
    half = build.add("Div", [width, build.constant(np.array([2]))])
    axis = build.constant(np.array([1]))
    first = build.add("Slice", [value, build.constant(np.array([0])), half, axis])
    return [first, build.add("Slice", [value, half, width, axis], value.dtype)]


def _by_row_scales(build: Builder, rows: ir.Value, weights: StoredWeights) -> ir.Value:
    """Each row divided by its own largest magnitude, rounded to 8 bits, multiplied as integers and scaled back."""
    axis = build.constant(np.array([2]))
    largest = build.add("ReduceMax", [build.add("Abs", [rows]), axis], keepdims=1)
    step = build.add("Mul", [largest, build.constant(np.array(1 / 127, np.float32))])
    step = build.add("Max", [step, build.constant(_SMALLEST)])
    levels = build.add("Round", [build.add("Div", [rows, step])])
    shifted = build.add("Add", [levels, build.constant(np.array(128, np.float32))])
    integers = build.add("Cast", [shifted], ir.DataType.UINT8, to=int(ir.DataType.UINT8))
    product = build.add(
        "MatMulIntegerToFloat",
        [
            integers,
            weights.tensors["values"],
            build.constant(np.array(1, np.float32)),
            weights.tensors["scales"],
            build.constant(np.array(128, np.uint8)),
        ],
        ir.DataType.FLOAT,
        _MICROSOFT,
    )
    return build.add("Mul", [product, step])
