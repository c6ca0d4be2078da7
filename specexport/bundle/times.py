"""How long one window of each width takes on this machine."""

from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

from specexport.draft_kinds.windows import LAW_SUFFIX
from specexport.graph.plan import DRAFT_PROFILE
from specexport.parity.host import opened_context
from specruntime import clock
from specruntime.engines import EngineOptions
from specruntime.engines.protocol import Context, Window
from specruntime.engines.windows import stage
from specruntime.errors import BackendIncompatible, BackendMissing
from specruntime.manifest.schema import GraphSpec

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
    with opened_context(spec, root, options) as context:
        windows = [context.window(profile.name) for profile in spec.profiles]
        rounds = [[_time_window(context, window) for window in windows] for _ in range(repeats)]
        medians = (round(1e3 * median(times), 3) for times in zip(*rounds, strict=True))
        return dict(zip((window.profile.name for window in windows), medians, strict=True))


def _time_window(context: Context, window: Window) -> float:
    stage_window(context, window)
    began = clock.now()
    context.run(window)
    return clock.now() - began


def stage_window(
    context: Context,
    window: Window,
    ids: NDArray[np.int64] | None = None,
    *,
    hidden: NDArray[np.float32] | None = None,
    rows: NDArray[np.int64] | None = None,
) -> None:
    """Put a window of ids [W], 0 where none are given, behind about `CONTEXT_ROWS` tokens of the cache."""
    width = window.profile.width
    start = min(CONTEXT_ROWS, context.spec.capacity - width - context.spec.drafted + 1)
    stage(window, np.zeros(width, np.int64) if ids is None else ids, start, hidden=hidden, rows=rows)


@dataclass(frozen=True)
class ProfileTimes:
    """Median milliseconds by profile name; none, and the `reason`, where this machine cannot run the engine."""

    by_name: dict[str, float] = field(default_factory=dict)
    reason: str | None = None

    def record(self, spec: GraphSpec) -> dict[str, object]:
        """For the build record: `step_ms` by width, and by profile where a width has several."""
        if self.reason is not None:
            return {"step_ms": None, "step_ms_reason": self.reason}
        usual = [p for p in spec.profiles if not p.name.endswith(LAW_SUFFIX) and p.name != DRAFT_PROFILE]
        times = {str(p.width): self.by_name[p.name] for p in reversed(usual or spec.profiles)}
        widths = dict(sorted(times.items(), key=lambda item: int(item[0])))
        return {"step_ms": widths, "profile_ms": self.by_name}


def measure_profile_times(spec: GraphSpec, root: Path) -> ProfileTimes:
    """Time every profile of a graph whose files lie in `root`."""
    try:
        return ProfileTimes(measure_window_times(spec, root))
    except (BackendMissing, BackendIncompatible) as error:  # a device this host lacks: parity ran on its CPU
        return ProfileTimes(reason=f"the build host cannot run the engine: {error}")
