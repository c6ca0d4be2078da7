"""Matrices in the layout that the window operators read: tiles of 16 outputs, blocks along K, all of a block together.

Owns layout 1, which runtime/kernels/README.md documents: bytes and the attributes that describe them. Knows no graph.
"""

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from specexport.passes.weight_blocks import BlockWeights

TILE = 16
_HALF_NOISE = 1e-6
"""By how much a number that the checkpoint holds in fp16 may be off after it went through fp32, in units of its block's
largest weight."""
_CHANNEL_BLOCK = 32  # of weights with one scale an output
_FLOATS: dict[str, type[np.generic]] = {
    "bf16": ml_dtypes.bfloat16,
    "fp16": np.float16,
    "fp32": np.float32,
}
_PADDING = -1

Order = NDArray[np.intp]


@dataclass(frozen=True)
class PackedMatrix:
    """A matrix [outputs, size] in layout 1, and how an operator must read it."""

    content: NDArray[np.uint8]
    outputs: int
    size: int
    format: str
    block: int = 0
    scale_type: str = "fp32"
    has_zeros: bool = False
    has_minimum: bool = False

    def attributes(self) -> dict[str, int | str]:
        """Return the attributes of an operator that reads it."""
        return {
            "K": self.size,
            "N": self.outputs,
            "format": self.format,
            "block": self.block,
            "scale_type": self.scale_type,
            "has_zeros": int(self.has_zeros),
            "has_minimum": int(self.has_minimum),
        }


def pack_blocks(weights: BlockWeights, size: int, *, gated: bool = False) -> PackedMatrix:
    """Integer weights [N, blocks, block] of which the first `size` along K count; `gated`: gates, then as many ups."""
    outputs = len(weights.values)
    scale_type, scales, minimum = _stored_scales(weights)
    record = _record(weights, scale_type)
    order = _order(outputs, gated)
    tiles = np.empty((len(order) // TILE, weights.values.shape[1]), record)
    steps = _steps(weights.values, order)
    if weights.bits == 4:
        steps = steps[:, :, 0::2] | steps[:, :, 1::2] << np.uint32(4)
    tiles["values"] = steps
    tiles["scales"] = _tiled(scales, order)
    if weights.zeros is not None:
        tiles["zeros"] = _tiled(weights.zeros, order)
        tiles["padding"] = 0
    if minimum is not None:
        tiles["minimum"] = _tiled(minimum, order)
    return PackedMatrix(
        tiles.reshape(-1).view(np.uint8),
        outputs,
        size,
        f"int{weights.bits}",
        weights.block,
        scale_type,
        weights.zeros is not None,
        minimum is not None,
    )


def pack_channels(
    values: NDArray[np.int8], scales: NDArray[np.float32], *, gated: bool = False
) -> PackedMatrix:
    """`values` [N, K] with one scale an output: its scales lie behind the blocks of a tile."""
    outputs, size = values.shape
    blocks = -(-size // _CHANNEL_BLOCK)
    levels = np.full((outputs, blocks * _CHANNEL_BLOCK), 128, np.uint8)
    levels[:, :size] = values.astype(np.int16) + 128
    order = _order(outputs, gated)
    steps = _steps(levels.reshape(outputs, blocks, _CHANNEL_BLOCK), order)
    tiles = np.empty(len(order) // TILE, [("values", "<u4", steps.shape[1:]), ("scales", "<f4", TILE)])
    tiles["values"] = steps
    tiles["scales"] = _tiled(scales[:, None], order)[:, 0]
    return PackedMatrix(tiles.view(np.uint8), outputs, size, "int8", _CHANNEL_BLOCK)


def pack_numbers(weights: NDArray[np.float32], *, gated: bool = False) -> PackedMatrix:
    """`weights` [N, K] as they are, in the smallest format that holds every one of them exactly."""
    outputs, size = weights.shape
    name, stored = _smallest_float(weights)
    order = _order(outputs, gated)
    tiles = _tiled(stored.view(f"u{stored.itemsize}"), order)
    return PackedMatrix(np.ascontiguousarray(tiles).reshape(-1).view(np.uint8), outputs, size, name)


def _order(outputs: int, gated: bool) -> Order:
    """Return which output stands at each place of the tiles: 8 gates and the ups that they meet share a tile."""
    if not gated:
        order = np.full(-(-outputs // TILE) * TILE, _PADDING, np.intp)
        order[:outputs] = np.arange(outputs)
        return order
    assert outputs % 2 == 0, "as many gates as ups"
    half, lanes = outputs // 2, TILE // 2
    gates = np.full(-(-half // lanes) * lanes, _PADDING, np.intp)
    gates[:half] = np.arange(half)
    ups = np.where(gates == _PADDING, _PADDING, gates + half)
    return np.stack([gates.reshape(-1, lanes), ups.reshape(-1, lanes)], axis=1).reshape(-1)


def _placed(rows: NDArray[Any], order: Order) -> NDArray[Any]:
    """[places, ...]: the rows in `order`, zeros where it has none."""
    if len(order) == len(rows) and (order == np.arange(len(rows))).all():
        return rows
    found: NDArray[Any] = rows[order]
    found[order == _PADDING] = 0
    return found


def _tiled(columns: NDArray[Any], order: Order) -> NDArray[Any]:
    """[N, n] -> [tiles, n, 16]"""
    return _placed(columns, order).reshape(-1, TILE, columns.shape[1]).transpose(0, 2, 1)


def _steps(values: NDArray[np.uint8], order: Order) -> NDArray[np.uint32]:
    """[N, blocks, block] -> [tiles, blocks, block / 4, 16], four neighbours along K in one number."""
    quads = np.ascontiguousarray(_placed(values, order)).view("<u4")
    found: NDArray[np.uint32] = quads.reshape(-1, TILE, *quads.shape[1:]).transpose(0, 2, 3, 1)
    return found


def _record(weights: BlockWeights, scale_type: str) -> np.dtype[Any]:
    scale = "<f2" if scale_type == "fp16" else "<f4"
    fields: list[tuple[str, str, int | tuple[int, int]]] = [
        ("values", "<u4", (weights.block * weights.bits // 32, TILE)),
        ("scales", scale, TILE),
    ]
    if weights.zeros is not None:
        fields += [("zeros", "u1", TILE), ("padding", "u1", TILE)]
    if weights.minimum is not None:
        fields.append(("minimum", scale, TILE))
    return np.dtype(fields)


def _stored_scales(
    weights: BlockWeights,
) -> tuple[str, NDArray[np.floating], NDArray[np.floating] | None]:
    """Return scales, and what level 0 stands for: in fp16 where the checkpoint holds them so, its own numbers."""
    scales = weights.scales.astype(np.float64)
    zeros = float(1 << (weights.bits - 1)) if weights.zeros is None else weights.zeros.astype(np.float64)
    lowest = None if weights.minimum is None else weights.minimum.astype(np.float64) - zeros * scales
    levels = weights.values.max(axis=-1).astype(np.float64)
    largest = levels * np.abs(scales) + (0.0 if lowest is None else np.abs(lowest))
    fits = _fits_half(scales, levels, largest) and (lowest is None or _fits_half(lowest, 1.0, largest))
    kind = np.float16 if fits else np.float32
    with np.errstate(under="ignore"):
        return (
            "fp16" if fits else "fp32",
            scales.astype(kind),
            None if lowest is None else lowest.astype(kind),
        )


def _fits_half(
    numbers: NDArray[np.float64], factor: NDArray[np.float64] | float, largest: NDArray[np.float64]
) -> bool:
    with np.errstate(over="ignore", under="ignore"):
        error = np.abs(numbers.astype(np.float16).astype(np.float64) - numbers)
    return bool((error * factor <= _HALF_NOISE * largest).all())


def _smallest_float(weights: NDArray[np.float32]) -> tuple[str, NDArray[np.generic]]:
    for name, kind in _FLOATS.items():
        with np.errstate(over="ignore", under="ignore"):
            stored = weights.astype(kind)
        if name == "fp32" or np.array_equal(stored.astype(np.float32), weights):
            return name, np.ascontiguousarray(stored)
    raise AssertionError("fp32 holds every weight")
