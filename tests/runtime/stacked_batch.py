"""A batch context made of single contexts, one a row: what a launch must be equal to, and the scripted batch."""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specruntime.engines.protocol import BatchContext, Context, Window
from specruntime.manifest.schema import GraphSpec
from tests.scripted_clock import CLOCK

INPUTS = (
    "input_ids", "position_ids", "cache_length", "logits_rows", "window_mask", "query_lengths", "hidden",
)  # fmt: skip
OUTPUTS = ("top_ids", "features", "next_hidden", "topk_ids", "topk_logprobs")


class StackedBatch:
    """Copies row i of a launch into the window of context `first + i`, runs it, and copies its answers back."""

    def __init__(self, spec: GraphSpec, rows: int, new_context: Callable[[], Context]) -> None:
        self.spec, self.rows = spec, rows
        self.replays: dict[str, int] = {}
        self.contexts = [new_context() for _ in range(rows)]
        self.runs: list[tuple[str, int, int]] = []  # profile, first, size
        self.closed = False
        self._logits: dict[str, NDArray[np.float32]] = {}
        self._windows: dict[tuple[str, int], Window] = {}
        for profile in spec.profiles:
            one = self.contexts[0].window(profile.name)
            sizes = [size for size in spec.sizes_of(profile) if size <= rows]
            stacked: dict[str, Any] = {
                field.name: np.zeros((sizes[-1], *array.shape[1:]), array.dtype)
                for field in fields(Window)
                if isinstance(array := getattr(one, field.name), np.ndarray)
            }
            for size in sizes:
                parts: dict[str, Any] = {name: array[:size] for name, array in stacked.items()}
                self._windows[profile.name, size] = replace(one, **parts)

    def window(self, profile: str, size: int) -> Window:
        return self._windows[profile, size]

    def run(self, window: Window, first: int) -> None:
        name, size = window.profile.name, len(window.cache_length)
        self.runs.append((name, first, size))
        with CLOCK.together():
            self._run_rows(window, first, size)

    def _run_rows(self, window: Window, first: int, size: int) -> None:
        name = window.profile.name
        for index in range(size):
            context = self.contexts[first + index]
            one = context.window(name)
            for field in INPUTS:
                if (array := getattr(window, field)) is not None:
                    getattr(one, field)[0] = array[index]
            context.run(one)
            for field in OUTPUTS:
                if (array := getattr(window, field)) is not None:
                    array[index] = getattr(one, field)[0]
            if any(t.name in ("logits", "top_ids", "topk_ids") for t in self.spec.outputs):
                self._keep_logits(name, index, context.logits(one))

    def logits(self, window: Window) -> NDArray[np.float32]:
        return self._logits[window.profile.name][: len(window.cache_length)]

    def keep(self, row: int, start: int, rows: NDArray[np.int64]) -> None:
        self.contexts[row].keep(start, rows)

    def copy_rows(self, row: int, source: BatchContext, source_row: int, count: int) -> None:
        assert isinstance(source, StackedBatch)
        self.contexts[row].copy_rows(source.contexts[source_row], count)

    def cache(self, row: int) -> dict[str, NDArray[np.generic]]:
        return self.contexts[row].cache()

    def zero(self, row: int) -> None:
        self.contexts[row].zero()

    def close(self) -> None:
        self.closed = True
        for context in self.contexts:
            context.close()

    def _keep_logits(self, profile: str, index: int, logits: NDArray[np.float32]) -> None:
        """One buffer a profile, as the engines have it: later launches write over it."""
        if profile not in self._logits:
            self._logits[profile] = np.zeros((self.rows, *logits.shape[1:]), np.float32)
        self._logits[profile][index] = logits[0]
