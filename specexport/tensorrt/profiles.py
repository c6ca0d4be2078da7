"""Optimization profiles: which shapes the engine is compiled for.

Owns the choice between one shared profile and one static profile per width. Shapes are static at every enqueue either
way; the choice only decides how many copies of the weights the engine holds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from specexport.tensorrt.engine_report import ShapeRange

BATCH, WIDTH, ROWS = "B", "W", "R"


@dataclass(frozen=True)
class WindowShape:
    """One way the runtime enqueues the engine: `batch` sequences, `width` window nodes, `rows` of them get logits."""

    width: int
    rows: int
    batch: int = 1


@dataclass(frozen=True)
class SymbolicInput:
    """An engine input; each dimension is a number or the symbol `B`, `W` or `R`."""

    name: str
    shape: tuple[int | str, ...]

    def at(self, window: WindowShape) -> tuple[int, ...]:
        sizes = {BATCH: window.batch, WIDTH: window.width, ROWS: window.rows}
        return tuple(sizes[size] if isinstance(size, str) else size for size in self.shape)


def shared_profile(
    inputs: Sequence[SymbolicInput], windows: Sequence[WindowShape], optimum: WindowShape
) -> dict[str, ShapeRange]:
    """One profile over all `windows`, tuned for `optimum`: every dynamic size goes from its least to its largest."""
    least, largest = (
        WindowShape(*(extreme(getattr(w, size) for w in windows) for size in ("width", "rows", "batch")))
        for extreme in (min, max)
    )
    return {
        tensor.name: ShapeRange(
            minimum=tensor.at(least), optimum=tensor.at(optimum), maximum=tensor.at(largest)
        )
        for tensor in inputs
    }


def static_profiles(
    inputs: Sequence[SymbolicInput], windows: Sequence[WindowShape]
) -> tuple[dict[str, ShapeRange], ...]:
    """One profile per judged window (step and verify widths), static but for the batch, and one over the prefill
    windows.

    `profile_index` says which profile a window runs in.
    """
    judged, prefill = _judged(windows), _prefill(windows)
    static = [shared_profile(inputs, shapes, max(shapes, key=lambda w: w.batch)) for shapes in judged]
    shared = [shared_profile(inputs, prefill, max(prefill, key=lambda w: w.width))] if prefill else []
    return (*static, *shared)


def profile_index(windows: Sequence[WindowShape], window: WindowShape) -> int:
    """Index of the `static_profiles` profile that `window` runs in."""
    judged = _judged(windows)
    return next((index for index, shapes in enumerate(judged) if window in shapes), len(judged))


def _judged(windows: Sequence[WindowShape]) -> list[list[WindowShape]]:
    """Return the windows that judge all their rows, by width: one list of the batches of each."""
    found: dict[int, list[WindowShape]] = {}
    for window in windows:
        if window.rows == window.width:
            found.setdefault(window.width, []).append(window)
    return list(found.values())


def _prefill(windows: Sequence[WindowShape]) -> list[WindowShape]:
    return [window for window in windows if window.rows != window.width]
