"""One linear layer's weights in fewer bits, as plain arrays: what ModelOpt found and what the graph will hold.

Matrices are [N, K], a row per output. Knows neither libraries nor graphs.
"""

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

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
    """The least scale a graph of `dtype` may hold; what is divided by it stays a number."""
    return float(ml_dtypes.finfo(dtype).smallest_subnormal)  # type: ignore[no-untyped-call]
