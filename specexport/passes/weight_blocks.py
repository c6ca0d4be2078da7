"""Weights as integers with a scale per block: on the grid the checkpoint was stored on where it has one, otherwise
rounded by ONNX Runtime's own quantizer.

Owns numbers only; knows no graph. A weight is [N, K]: one row per output, cut into blocks along K.
"""

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Weights = NDArray[np.float32]
_Reals = NDArray[np.float64]

# Rounding of a dequantised weight (fp16 scale times integer plus fp16 minimum, in fp32), relative to its block's range.
_GRID_TOLERANCE = 2e-5
# Of a weight that is a scale times an integer, in fp32, relative to the block's largest.
_PRODUCT_TOLERANCE = 1e-6
_FINEST_GRID = 255
_SMALLEST_BLOCK = 16  # of MatMulNBits, and of Q2_K, Q3_K and Q6_K
_SAMPLE = 256  # blocks that are looked at before a whole matrix is
_NO_STEP = float(np.finfo(np.float32).tiny)  # of a block of equal weights: its minimum alone is the weight
_SYMMETRIC = {8: 128, 4: 8}  # the integer that stands for zero


@dataclass(frozen=True)
class BlockWeights:
    """weight = scale * (value - zero) + `minimum`, block by block.

    `values` [N, blocks, block] uint8 below 2**bits; `scales` [N, blocks]; `zeros` [N, blocks] uint8, None where all are
    2**(bits-1); `minimum` [N, blocks] float32, None where all are 0. `exact`: share of the blocks whose weights are
    kept as they are. `rounded`: the weights lie on no grid of so few bits, each went to the nearest integer.
    """

    bits: int
    values: NDArray[np.uint8]
    scales: NDArray[np.float32]
    zeros: NDArray[np.uint8] | None
    minimum: NDArray[np.float32] | None
    exact: float
    rounded: bool = False

    @property
    def block(self) -> int:
        return int(self.values.shape[-1])

    def dequantised(self) -> Weights:
        """[N, blocks * block]"""
        zeros = _SYMMETRIC[self.bits] if self.zeros is None else self.zeros[..., None].astype(np.float64)
        found = (self.values.astype(np.float64) - zeros) * self.scales[..., None].astype(np.float64)
        if self.minimum is not None:
            found = found + self.minimum[..., None]
        return found.reshape(len(self.values), -1).astype(np.float32)


@dataclass(frozen=True)
class _Grid:
    """weight = step * level + lowest; `levels` [N, blocks, block], `steps` and `lowest` [N, blocks]."""

    levels: _Reals
    steps: _Reals
    lowest: _Reals
    found: NDArray[np.bool_]  # [N, blocks]


def quantise_blocks(weights: Weights, bits: int, block: int, *, minima: bool = True) -> BlockWeights:
    """`weights` [N, K] as integers of 4 or 8 bits, in blocks of `block`, or of 16 where those lie on the checkpoint's
    grid and larger ones do not. K that is not a multiple of `block` is padded with zeros.

    `minima`: blocks may have a minimum; a table whose rows are looked up has no place for one.
    """
    for size in dict.fromkeys((block, _SMALLEST_BLOCK)):
        if weights.shape[1] % size == 0:
            blocks = weights.reshape(len(weights), -1, size).astype(np.float64)
            if (kept := _on_grid(blocks, bits, minima)) is not None:
                return kept
    return _rounded(weights, bits, block)


def _on_grid(blocks: _Reals, bits: int, minima: bool) -> BlockWeights | None:
    """Return the blocks on the grid they were stored on, None where one of them has none of so many bits."""
    if bits == 8 and (symmetric := _symmetric_grid(blocks)) is not None:
        return symmetric
    size = blocks.shape[-1]
    sample = blocks.reshape(1, -1, size)[:, :: max(1, blocks.size // size // _SAMPLE)]
    if _affine_grid(sample).found.all():
        grid = _affine_grid(blocks)
        if bits == 4 and grid.found.all():
            return _four_bits(grid)
        if bits == 8 and grid.found.all() and _reaches_zero(grid):
            return _eight_bits(grid)
    return _mixed_grid(blocks, sample, minima) if bits == 8 else None


def _mixed_grid(blocks: _Reals, sample: _Reals, minima: bool) -> BlockWeights | None:
    """8 bits of blocks that are each a multiple of a step, or have a minimum and at most 32 levels: Q5_0, Q6_K, IQ4_NL
    and the like, Q5_1 and Q5_K, and matrices packed of several."""
    for part in (sample, blocks):
        steps = _integer_steps(part)
        grid = _affine_grid(part, 32) if minima and (steps == 0).any() else None
        found = steps > 0 if grid is None else (steps > 0) | grid.found
        if not found.all():
            return None
    levels = np.rint(blocks / np.where(steps > 0, steps, 1)[..., None]) + 128
    if grid is None:
        return BlockWeights(8, levels.astype(np.uint8), steps.astype(np.float32), None, None, 1.0)
    affine = steps == 0
    levels = np.where(affine[..., None], grid.levels + 112, levels)
    scales = np.where(affine, grid.steps, steps).astype(np.float32)
    minimum = np.where(affine, grid.lowest + 16 * scales.astype(np.float64), 0).astype(np.float32)
    return BlockWeights(8, levels.astype(np.uint8), scales, None, minimum, 1.0)


def _integer_steps(blocks: _Reals) -> _Reals:
    """[N, blocks]: the step that every weight of a block is at most 127 times of, 0 without such a step."""
    largest = np.abs(blocks).max(axis=-1)
    steps = np.where(largest > 0, 0.0, 1.0)
    for count in (127, *range(1, 127)):
        left = steps == 0
        if not left.any():
            break
        for few in (4, blocks.shape[-1]):  # most blocks are off a grid by their first weights
            levels = blocks[left][:, :few] * (count / largest[left])[:, None]
            error = np.abs(levels - np.rint(levels)).max(axis=-1)
            places = tuple(axis[error <= count * _PRODUCT_TOLERANCE] for axis in np.nonzero(left))
            left = np.zeros_like(left)
            left[places] = True
        steps[left] = largest[left] / count
    return steps


def _affine_grid(blocks: _Reals, levels: int = 16) -> _Grid:
    """Return a grid of at most `levels` equidistant values that each block lies on, where there is one."""
    lowest = blocks.min(axis=-1)
    above = blocks - lowest[..., None]
    span = above.max(axis=-1)
    found, steps = span == 0, np.full_like(span, _NO_STEP)
    for count in range(levels - 1, 0, -1):  # blocks that were rounded to a grid mostly use all of it
        left = ~found
        if not left.any():
            break
        step = span[left] / count
        level = above[left] / step[:, None]
        error = np.abs(level - np.rint(level)).max(axis=-1) * step
        fits = error <= span[left] * _GRID_TOLERANCE
        places = tuple(axis[fits] for axis in np.nonzero(left))
        found[places], steps[places] = True, step[fits]
    return _Grid(np.rint(above / steps[..., None]), steps, lowest, found)


def _symmetric_grid(blocks: _Reals) -> BlockWeights | None:
    """Blocks of the form step * (-127..127), as 8-bit formats without a minimum store them; None where one is not."""
    largest = np.abs(blocks).max(axis=-1)
    steps = np.where(largest > 0, largest / 127, 1.0)
    levels = blocks / steps[..., None]
    error = np.abs(levels - np.rint(levels)).max(axis=-1) * steps
    if (error > 2 * largest * _GRID_TOLERANCE).any():
        return None
    values = (np.rint(levels) + 128).astype(np.uint8)
    return BlockWeights(8, values, steps.astype(np.float32), None, None, 1.0)


def _four_bits(grid: _Grid) -> BlockWeights:
    """Exact: multiples of a step have no minimum; else what the step does not reach of it is a number of its own."""
    if (centred := _centred(grid)) is not None:
        return centred
    steps = grid.steps.astype(np.float32)
    minimum = (grid.lowest + _SYMMETRIC[4] * steps.astype(np.float64)).astype(np.float32)
    return BlockWeights(4, grid.levels.astype(np.uint8), steps, None, minimum, 1.0)


def _centred(grid: _Grid) -> BlockWeights | None:
    """Levels from -8 to 7 where every weight of every block is a multiple of its step, as Q4_0 stores them: the step is
    negative where a block reaches 8 steps above 0."""
    grid = _with_zero(grid)
    offset = np.rint(grid.lowest / grid.steps)
    if (np.abs(grid.lowest - offset * grid.steps) > grid.steps * 1e-3).any():
        return None
    multiples = grid.levels + offset[..., None]
    turned = multiples.max(axis=-1) > 7
    values = np.where(turned[..., None], -multiples, multiples) + _SYMMETRIC[4]
    if values.min() < 0 or values.max() > 15:
        return None
    steps = np.where(turned, -grid.steps, grid.steps).astype(np.float32)
    return BlockWeights(4, values.astype(np.uint8), steps, None, None, 1.0)


def _eight_bits(grid: _Grid) -> BlockWeights:
    """Make each step of the grid k finer ones, k such that the minimum comes closest to an integer of them: the
    weights of a block keep their distances and are moved together by a few thousandths of a step."""
    grid = _with_zero(grid)
    offset, top = grid.lowest / grid.steps, np.maximum(grid.levels.max(axis=-1), 1)
    factor, best = np.ones_like(offset), np.full_like(offset, np.inf)
    for k in range(1, _FINEST_GRID // 15 + 1):
        zero = -np.rint(offset * k)
        error = np.abs(offset * k + zero) / k
        better = (zero >= 0) & (zero <= 255) & (k * top <= 255) & (error < best - 1e-12)
        factor[better], best[better] = k, error[better]
    assert np.isfinite(best).all(), "each block has an integer that stands for zero"
    zeros = -np.rint(offset * factor)
    exact = float((best < 1e-6).mean())
    values = (grid.levels * factor[..., None]).astype(np.uint8)
    scales = (grid.steps / factor).astype(np.float32)
    return BlockWeights(8, values, scales, zeros.astype(np.uint8), None, exact)


def _reaches_zero(grid: _Grid) -> bool:
    """Whether an integer of 8 bits can stand for zero in each block; not where all are far away on one side."""
    grid = _with_zero(grid)
    offset = -np.rint(grid.lowest / grid.steps)
    return bool(((offset >= 0) & (offset <= 255)).all())


def _with_zero(grid: _Grid) -> _Grid:
    """Blocks of equal weights other than 0 as one step to or from 0, which 8 bits hold as an integer."""
    flat = (grid.steps == _NO_STEP) & (grid.lowest != 0)
    return _Grid(
        np.where(flat[..., None], (grid.lowest > 0)[..., None].astype(np.float64), grid.levels),
        np.where(flat, np.abs(grid.lowest), grid.steps),
        np.where(flat, np.minimum(grid.lowest, 0.0), grid.lowest),
        grid.found,
    )


def _rounded(weights: NDArray[np.floating], bits: int, block: int) -> BlockWeights:
    """By ONNX Runtime's own quantizer, to the nearest integer of a symmetric grid for 4 bits, an affine one for 8."""
    columns = np.ascontiguousarray(weights.T, np.float32)
    library = _quantizer_module()
    config = library.DefaultWeightOnlyQuantConfig(block_size=block, is_symmetric=bits == 4, bits=bits)
    packed, scales, zeros = library.DefaultWeightOnlyQuantizer(config).qbits_block_quant(columns)
    values = packed if bits == 8 else _unpacked(packed)
    return BlockWeights(bits, values, scales, zeros if bits == 8 else None, None, 0.0, rounded=True)


def _quantizer_module() -> Any:
    """ONNX Runtime's quantizer. Its import sends the whole process's log to stderr, which is taken back."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    from onnxruntime.quantization import matmul_nbits_quantizer

    root.setLevel(level)
    root.handlers[:] = handlers
    return matmul_nbits_quantizer


def packed_nibbles(values: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """[..., 2n] values below 16 as [..., n] bytes, the first of each pair in the low half."""
    packed: NDArray[np.uint8] = np.bitwise_or(values[..., 0::2], values[..., 1::2] << 4)
    return packed.astype(np.uint8, copy=False)


def _unpacked(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    pairs = np.stack([packed & 15, packed >> 4], axis=-1)
    return pairs.reshape(*packed.shape[:-1], -1)


def quantise_channels(weights: Weights) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """`weights` [N, K] as int8 with one scale per output: values [N, K] in -127..127, scales [N]."""
    largest = np.abs(weights).max(axis=1)
    scales = np.where(largest > 0, largest / 127, 1.0).astype(np.float32)
    return np.rint(weights / scales[:, None]).astype(np.int8), scales
