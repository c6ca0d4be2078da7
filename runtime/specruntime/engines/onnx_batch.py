"""The sequences on one ONNX Runtime session, one or several: caches side by side, one launch for neighbouring ones.

The caches of sequences first .. first + n - 1 are one block of memory in each layer's buffer, so a launch is bound to
them as they lie. Bindings are made when a launch is first asked for; the buffers all at once.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specruntime.engines.layout import no_logits, staged_window
from specruntime.engines.onnx_buffers import (
    Binding,
    GrownMemory,
    StagingBuffers,
    allocate_slabs,
    copy_rows,
    move_rows,
)
from specruntime.engines.protocol import BatchContext, Window
from specruntime.errors import WrongState
from specruntime.manifest.schema import GraphSpec


class OrtBatch:
    """A `BatchContext` in host memory."""

    def __init__(self, sessions: Mapping[str, Any], spec: GraphSpec, rows: int, grown: GrownMemory) -> None:
        """Allocate the buffers, run what `grown` lacks at its largest size, then zero the caches."""
        self.spec, self.rows = spec, rows
        self.replays: dict[str, int] = {}
        whole = spec.model_copy(update={"batch": rows})
        self._slabs = allocate_slabs(whole)
        self._cache = {name: slab[i] for names, slab in self._slabs for i, name in enumerate(names)}
        self._staging: dict[str, StagingBuffers] = {}
        self._windows: dict[tuple[str, int], Window] = {}
        self._bindings: dict[tuple[str, int, int], Binding] = {}  # by profile, first sequence, size
        largest = []
        for profile in spec.profiles:
            sizes = [size for size in spec.sizes_of(profile) if size <= rows]
            widest = spec.model_copy(update={"batch": sizes[-1]})
            staging = StagingBuffers(sessions[profile.file or spec.file], widest, profile)
            self._staging[profile.name] = staging
            host = staging.inputs | staging.outputs
            for size in sizes:
                part = spec.model_copy(update={"batch": size})
                views = {name: array[:size] for name, array in host.items()}
                self._windows[profile.name, size] = staged_window(part, profile, views)
            largest.append((profile, sizes[-1]))
        grown.grow(spec, largest, lambda profile, size: self.run(self._windows[profile.name, size], 0))
        for row in range(rows):
            self.zero(row)

    def window(self, profile: str, size: int) -> Window:
        return self._windows[profile, size]

    def run(self, window: Window, first: int) -> None:
        size, profile = len(window.cache_length), window.profile.name
        binding = self._bindings.get((profile, first, size))
        if binding is None:
            if not self._staging:
                raise WrongState("the context is closed; take a new session or batch")
            cache = {name: array[first : first + size] for name, array in self._cache.items()}
            binding = self._bindings[profile, first, size] = self._staging[profile].bind(cache, size)
        binding.run()

    def logits(self, window: Window) -> NDArray[np.float32]:
        logits = self._staging[window.profile.name].logits
        if logits is None:
            raise no_logits(self.spec, window.profile)
        return logits[: len(window.cache_length)]

    def keep(self, row: int, start: int, rows: NDArray[np.int64]) -> None:
        move_rows([slab[:, row : row + 1] for _, slab in self._slabs], start, rows)

    def copy_rows(self, row: int, source: BatchContext, source_row: int, count: int) -> None:
        copy_rows(self.cache(row), source.cache(source_row), count)

    def cache(self, row: int) -> dict[str, NDArray[np.generic]]:
        return {name: array[row : row + 1] for name, array in self._cache.items()}

    def zero(self, row: int) -> None:
        for _, slab in self._slabs:
            slab[:, row] = 0

    def close(self) -> None:
        self._bindings, self._windows, self._staging = {}, {}, {}
        self._cache, self._slabs = {}, []
