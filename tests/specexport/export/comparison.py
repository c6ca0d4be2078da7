"""Runs a graph in ONNX Runtime and the model in eager PyTorch, and compares the two.

The reference knows nothing of caches, windows or masks: one forward pass over each whole sequence.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

CAPACITY = 48
VOCAB_SIZE = 150  # real tokens; the models' LM heads have 160 rows
POISON = 1e4
Array = NDArray[Any]


@dataclass(frozen=True)
class Reference:
    """Eager PyTorch over one sequence of n tokens."""

    ids: Array  # [n]
    logits: Array  # [n, padded vocab]
    rows: tuple[Array, ...]  # key.0, value.0, key.1, ..., each [kv_heads, n, head_dim]


def run_eager(model: PreTrainedModel, ids: Sequence[int] | Array) -> Reference:
    cache = DynamicCache()
    with torch.no_grad():
        logits = model(input_ids=torch.tensor(np.asarray(ids))[None], cache=cache, use_cache=True).logits
    layers = [layer for layer in cache.layers if isinstance(layer, DynamicLayer)]
    rows = tuple(
        rows[0].numpy() for layer in layers for rows in (layer.keys, layer.values) if rows is not None
    )
    return Reference(np.asarray(ids), logits[0].float().numpy(), rows)


def random_ids(seed: int, count: int) -> Array:
    return np.random.default_rng(seed).integers(0, VOCAB_SIZE, count)


@dataclass(frozen=True)
class Step:
    """Inputs of one run: window ids [B, W] at positions [B, W], after `lengths` [B] committed rows.

    `valid` [B] is how many window rows are real; `mask` [B, W, W] is lower triangular for chains.
    """

    ids: Array
    positions: Array
    lengths: Array
    valid: Array
    mask: Array
    logits_rows: Array


class Graph:
    """An ONNX file with its cache bound in place, as the runtime binds it."""

    def __init__(self, path: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.past = [value for value in self._session.get_inputs() if value.name.startswith("past_")]
        self.inputs = {value.name for value in self._session.get_inputs()}

    def empty_cache(self, batch: int, fill: float) -> list[Array]:
        """Buffers of unused rows, alternately +fill and -fill."""
        cache = [np.full((batch, *value.shape[1:]), fill, np.float32) for value in self.past]
        for buffer in cache:
            buffer[..., ::2] *= -1
        return cache

    def run(self, step: Step, cache: list[Array]) -> tuple[Array, Array]:
        """logits [B, R, padded vocab] and top_ids [B, R]; writes the window's rows into `cache`."""
        binding = self._session.io_binding()
        fed = {
            "input_ids": step.ids,
            "position_ids": step.positions,
            "cache_length": step.lengths,
            "window_mask": step.mask,
            "logits_rows": step.logits_rows,
            "query_lengths": step.valid.astype(np.int32),
        }
        fed = {name: np.ascontiguousarray(array) for name, array in fed.items() if name in self.inputs}
        fed |= {value.name: buffer for value, buffer in zip(self.past, cache, strict=True)}
        for name, array in fed.items():
            binding.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
        for value in self._session.get_outputs():
            if value.name.startswith("present_"):
                buffer = fed[value.name.replace("present_", "past_")]
                binding.bind_output(value.name, "cpu", 0, buffer.dtype.type, buffer.shape, buffer.ctypes.data)
            else:
                binding.bind_output(value.name, "cpu")
        self._session.run_with_iobinding(binding)
        names = [value.name for value in self._session.get_outputs()]
        found = {name: binding.get_outputs()[names.index(name)].numpy() for name in ("logits", "top_ids")}
        return found["logits"], found["top_ids"]


@dataclass(frozen=True)
class Shape:
    """A case to run: committed rows and real window rows per batch row, in windows of `width`.

    Judged are all rows of the window, or the last real one only, as in a prefill.
    """

    fills: tuple[int, ...]
    valid: tuple[int, ...]
    width: int
    judge_all: bool = True


def chain_step(references: Sequence[Reference], shape: Shape) -> Step:
    """The window of each sequence after its fill; padding rows hold a token that is not part of it."""
    batch, width = len(shape.fills), shape.width
    lengths, valid = np.array(shape.fills), np.array(shape.valid)
    ids = np.full((batch, width), VOCAB_SIZE - 1)
    for row, (fill, count) in enumerate(zip(shape.fills, shape.valid, strict=True)):
        ids[row, :count] = references[row].ids[fill : fill + count]
    every_row = np.tile(np.arange(width), (batch, 1))
    return Step(
        ids=ids,
        positions=lengths[:, None] + np.arange(width),
        lengths=lengths,
        valid=valid,
        mask=np.tile(np.tri(width, dtype=bool), (batch, 1, 1)),
        logits_rows=every_row if shape.judge_all else valid[:, None] - 1,
    )


def fill_cache(cache: list[Array], references: Sequence[Reference], fills: Sequence[int]) -> None:
    """Committed rows as PyTorch computed them."""
    for row, (reference, fill) in enumerate(zip(references[: len(fills)], fills, strict=True)):
        for buffer, rows in zip(cache, reference.rows, strict=True):
            buffer[row, :, :fill] = rows[:, :fill]


@dataclass(frozen=True)
class Difference:
    """Largest differences of logits and of written KV rows, in units of the largest reference value.

    `wrong_top` counts top ids that are not the argmax of their own logits over the real vocabulary.
    """

    logits: float
    rows: float
    wrong_top: int

    @property
    def worst(self) -> float:
        return max(self.logits, self.rows)


def compare_chain(
    graph: Graph, references: Sequence[Reference], shape: Shape, unused: float = POISON
) -> Difference:
    """Runs `shape` on a cache whose unused rows hold +-`unused` and compares all that the valid rows produced."""
    step = chain_step(references, shape)
    batch = len(shape.fills)
    cache = graph.empty_cache(batch, unused)
    fill_cache(cache, references, shape.fills)
    logits, top_ids = graph.run(step, cache)
    logit_difference = row_difference = 0.0
    wrong_top = 0
    for row, (reference, fill, valid) in enumerate(
        zip(references[:batch], shape.fills, shape.valid, strict=True)
    ):
        judged = valid if shape.judge_all else 1
        expected = reference.logits[fill + valid - judged : fill + valid]
        found = logits[row, :judged]
        logit_difference = max(logit_difference, relative(found, expected))
        wrong_top += int((found[:, :VOCAB_SIZE].argmax(-1) != top_ids[row, :judged]).sum())
        for buffer, rows in zip(cache, reference.rows, strict=True):
            row_difference = max(
                row_difference, relative(buffer[row, :, : fill + valid], rows[:, : fill + valid])
            )
    return Difference(logit_difference, row_difference, wrong_top)


def relative(found: Array, expected: Array) -> float:
    """Largest absolute difference over the largest expected value; infinite where `found` is not finite."""
    difference = np.abs(found - expected).max() / np.abs(expected).max()
    return float(difference) if np.isfinite(difference) else float("inf")
