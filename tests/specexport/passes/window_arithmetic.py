"""The arithmetic of the window operators in numpy: packed bytes back to numbers, rows rounded, products summed.

Equal to the operators to the last bit for the integer formats: a fused multiply-add rounds once, so it is computed in
float64 rounded to odd, which the rounding to float32 that follows cannot tell from the exact sum.
"""

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from specexport.passes.packed_weights import TILE, PackedMatrix

Floats = NDArray[np.float32]
_KINDS = {"fp32": np.float32, "fp16": np.float16, "bf16": ml_dtypes.bfloat16}


@dataclass(frozen=True)
class Unpacked:
    """Levels [N, B, block], scales [N, B], zeros [N, B], and the minimum [N, B] of level 0 where there is one."""

    levels: NDArray[np.int64]
    scales: Floats
    zeros: NDArray[np.int64]
    minimum: Floats | None

    def weights(self) -> Floats:
        """[N, B * block]: what the packed bytes stand for."""
        found = self.scales[..., None].astype(np.float64) * (self.levels - self.zeros[..., None])
        if self.minimum is not None:
            shift = self.minimum.astype(np.float64) + self.zeros * self.scales.astype(np.float64)
            found = found + shift[..., None]
        return found.reshape(len(found), -1).astype(np.float32)


def order_of(matrix: PackedMatrix, *, gated: bool) -> NDArray[np.intp]:
    """The place of each output among the tiles."""
    if not gated:
        return np.arange(matrix.outputs)
    half, lanes = matrix.outputs // 2, TILE // 2
    gates = np.arange(half) // lanes * TILE + np.arange(half) % lanes
    return np.concatenate([gates, gates + lanes])


def unpack(matrix: PackedMatrix, *, gated: bool = False, channels: bool = False) -> Unpacked | Floats:
    """The numbers of a packed matrix, read byte by byte as the documentation of layout 1 says."""
    places = order_of(matrix, gated=gated)
    tiles = (places.max() // TILE) + 1
    if matrix.format in _KINDS:
        found = matrix.content.view(_KINDS[matrix.format]).reshape(tiles, matrix.size, TILE)
        return np.asarray(found.transpose(0, 2, 1).reshape(-1, matrix.size)[places], np.float32)
    blocks = -(-matrix.size // matrix.block)
    content = matrix.content.reshape(tiles, -1)
    scale = np.dtype(_KINDS[matrix.scale_type])
    if channels:
        values, rest = content[:, : -TILE * 4], content[:, -TILE * 4 :]
        scales: Any = np.repeat(rest.copy().view(np.float32).reshape(tiles, 1, TILE), blocks, axis=1)
        records = values.reshape(tiles, blocks, -1)
        offset = records.shape[-1]
    else:
        records = content.reshape(tiles, blocks, -1)
        offset = matrix.block * TILE // (2 if matrix.format == "int4" else 1)
        scales = _lanes(records, offset, scale)
        offset += TILE * scale.itemsize
    levels = records[..., : matrix.block * TILE // (2 if matrix.format == "int4" else 1)]
    if matrix.format == "int4":
        units = levels.reshape(tiles, blocks, -1, 1, 64)
        levels = np.concatenate([units & 15, units >> 4], axis=3).reshape(tiles, blocks, -1)
    steps = levels.reshape(tiles, blocks, matrix.block // 4, TILE, 4)
    by_output = steps.transpose(0, 3, 1, 2, 4).reshape(tiles * TILE, blocks, matrix.block)
    zeros = np.full((tiles, blocks, TILE), 8 if matrix.format == "int4" else 128)
    if matrix.has_zeros:
        zeros = records[..., offset : offset + TILE]
        offset += 2 * TILE
    minimum = _lanes(records, offset, scale) if matrix.has_minimum else None
    return Unpacked(
        by_output[places].astype(np.int64),
        _by_output(scales)[places].astype(np.float32),
        _by_output(zeros)[places].astype(np.int64),
        None if minimum is None else _by_output(minimum)[places].astype(np.float32),
    )


def _lanes(records: NDArray[np.uint8], offset: int, kind: np.dtype[np.generic]) -> NDArray[np.generic]:
    part = np.ascontiguousarray(records[..., offset : offset + TILE * kind.itemsize])
    return part.view(kind)


def _by_output(lanes: NDArray[np.generic]) -> NDArray[np.generic]:
    """[tiles, blocks, 16] -> [tiles * 16, blocks]"""
    return lanes.transpose(0, 2, 1).reshape(-1, lanes.shape[1])


def fma(a: Floats, b: Floats, c: Floats) -> Floats:
    """a * b + c, rounded once."""
    product = a.astype(np.float64) * b.astype(np.float64)  # exact
    total = product + c
    other = total - product
    error = (product - (total - other)) + (c.astype(np.float64) - other)
    even = (total.view(np.int64) & 1) == 0
    odd = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
    return np.where((error != 0) & even, odd, total).astype(np.float32)


def round_rows(x: Floats, block: int, rows: str) -> tuple[NDArray[np.int64], Floats]:
    """Levels [M, B, block] and scales [M, B] of rows [M, K]; `rows`: blocks, fine, or rows."""
    count, size = x.shape
    blocks = -(-size // block)
    padded = np.zeros((count, blocks * block), np.float32)
    padded[:, :size] = x
    parts = padded.reshape(count, 1, -1) if rows == "rows" else padded.reshape(count, blocks, block)
    most = np.float32(16256 if rows == "fine" else 127)
    largest = np.abs(parts).max(axis=-1)
    small = largest < np.float32(1e-30)
    scales = np.where(small, np.float32(0), largest / most).astype(np.float32)
    inverse = np.where(small, np.float32(0), most / np.where(small, np.float32(1), largest)).astype(
        np.float32
    )
    levels = np.rint(parts * inverse[..., None]).astype(np.int64)
    if rows == "rows":
        scales = np.repeat(scales, blocks, axis=1)
    return levels.reshape(count, blocks, block), scales


def multiply(x: Floats, matrix: PackedMatrix, rows: str, *, gated: bool = False) -> Floats:
    """[M, N]: rows times an integer matrix, block by block in order, before bias and activation."""
    found = unpack(matrix, gated=gated, channels=rows == "rows")
    assert isinstance(found, Unpacked)
    levels, steps = round_rows(x, matrix.block, rows)
    sums = np.einsum("mbk,nbk->mnb", levels, found.levels - found.zeros[..., None])
    if rows == "rows":
        once = sums.sum(axis=-1).astype(np.float32) * steps[:, :1]
        return np.asarray(once * found.scales[None, :, 0], np.float32)
    y = np.zeros(sums.shape[:2], np.float32)
    for b in range(sums.shape[2]):
        part = sums[..., b].astype(np.float32) * steps[:, None, b]
        y = fma(part, np.broadcast_to(found.scales[None, :, b], y.shape), y)
        if found.minimum is not None:
            zeros, scales = found.zeros[:, b].astype(np.float32), found.scales[:, b]
            shift = fma(zeros, scales, found.minimum[:, b])
            total = (steps[:, b] * levels[:, b].sum(axis=-1).astype(np.float32))[:, None]
            y = fma(np.broadcast_to(shift, y.shape), np.broadcast_to(total, y.shape), y)
    return y
