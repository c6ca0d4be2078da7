"""How long one window of each width takes on this machine."""

from pathlib import Path
from statistics import median

import numpy as np

from specruntime import clock
from specruntime.engine import Context, Window
from specruntime.engines import EngineOptions, open_engine
from specruntime.manifest import GraphSpec

CONTEXT_ROWS = 200
_REPEATS = 5


def measure_step_times(
    spec: GraphSpec, root: Path, *, options: EngineOptions | None = None, repeats: int = _REPEATS
) -> dict[str, float]:
    """As `measure_window_times`, by width; of profiles of one width the first, which computes no more than it must."""
    times = measure_window_times(spec, root, options=options, repeats=repeats)
    return {str(profile.width): times[profile.name] for profile in reversed(spec.profiles)}


def measure_window_times(
    spec: GraphSpec, root: Path, *, options: EngineOptions | None = None, repeats: int = _REPEATS
) -> dict[str, float]:
    """Median milliseconds by profile name, about `CONTEXT_ROWS` tokens in the cache (fewer where they do not fit).

    The windows take turns, so that what disturbs the machine for a while disturbs all of them.
    """
    engine = open_engine(spec, root, options or EngineOptions())
    try:
        context = engine.new_context()
        try:
            windows = [context.window(profile.name) for profile in spec.profiles]
            rounds = [[_time_window(context, window) for window in windows] for _ in range(repeats)]
            medians = (round(1e3 * median(times), 3) for times in zip(*rounds, strict=True))
            return dict(zip((window.profile.name for window in windows), medians, strict=True))
        finally:
            context.close()
    finally:
        engine.close()


def _time_window(context: Context, window: Window) -> float:
    stage_window(context, window)
    began = clock.now()
    context.run(window)
    return clock.now() - began


def stage_window(context: Context, window: Window) -> None:
    """Puts the window behind about `CONTEXT_ROWS` tokens of the cache."""
    width = window.profile.width
    start = min(CONTEXT_ROWS, context.spec.capacity - width - context.spec.drafted + 1)
    window.cache_length[:] = start
    window.position_ids[:] = start + np.arange(width)
