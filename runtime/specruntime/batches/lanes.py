"""One batch context seen as many contexts of one sequence, each with small windows of its own.

Owns what is staged for a launch and what is handed back: a lane never sees that others were launched with it. Lanes
that did not ask but lie between others write one stale row behind their own.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specruntime import clock
from specruntime.batches.launches import Launch, Waiting, plan, rows_written
from specruntime.engines.layout import HOST_TYPES, cached_inputs, no_logits, shape_of, staged_window
from specruntime.engines.protocol import BatchContext, Context, Window
from specruntime.engines.windows import stage
from specruntime.errors import EngineFailed, WrongState
from specruntime.manifest.schema import GraphSpec, Profile

_OUTPUTS = ("top_ids", "features", "next_hidden", "topk_ids", "topk_logprobs")
_LOGITS = ("logits", "draft_logits")
_IDLE_ID = np.zeros(1, np.int64)
_IDLE_MASK = np.ones((1, 1), np.bool_)
_IDLE_HIDDEN = np.zeros((1, 1), np.float32)


class LaneGroup:
    """The lanes over one batch context. One thread at a time."""

    def __init__(self, context: BatchContext, count: int) -> None:
        """Own the context. `count` lanes, at most its rows; rows without a lane are padding."""
        self.context = context
        self.spec = context.spec
        self.lanes = [Lane(self, row) for row in range(count)]
        self.launches = 0
        self.seconds = 0.0  # inside the engine
        self._open = count

    @property
    def waiting(self) -> "list[Lane]":
        """The lanes whose window has not been run."""
        return [lane for lane in self.lanes if lane.asked is not None]

    def launch(self, lanes: "Sequence[Lane]") -> None:
        """Run the windows that these lanes wait for. A failure is theirs: `Lane.run` raises it."""
        waiting = []
        for lane in lanes:
            assert lane.asked is not None
            waiting.append(Waiting(lane.row, lane.asked.profile, int(lane.asked.cache_length[0])))
        ends = {lane.row: lane.end for lane in self.lanes if lane.end}
        for launch in plan(self.spec, self.context.rows, waiting, ends):
            self._run(launch)

    def leave(self) -> None:
        """One lane was closed; the last one closes the context."""
        self._open -= 1
        if not self._open:
            self.context.close()

    def _run(self, launch: Launch) -> None:
        window = self.context.window(launch.profile.name, launch.size)
        rows = range(launch.first, launch.first + launch.size)
        asking = {row: self.lanes[row] for row in launch.rows}
        for lane in self.lanes:
            if lane.row not in asking:
                lane.rescue_logits(launch.profile, launch.size)
        for index, row in enumerate(rows):
            if row in asking:
                _stage(window, index, asking[row].asked)
            else:
                _stage_idle(window, index, self.lanes[row].end if row < len(self.lanes) else 0)
        started = clock.now()
        try:
            self.context.run(window, launch.first)
        except BaseException as error:
            for row in rows:
                if row < len(self.lanes):
                    self.lanes[row].fail(error)
            return
        seconds = clock.now() - started
        self.launches += 1
        self.seconds += seconds
        for row, lane in asking.items():
            lane.take(window, row - launch.first, seconds)


class Lane:
    """A `Context` of one sequence: row `row` of the group's caches."""

    def __init__(self, group: LaneGroup, row: int) -> None:
        self.spec: GraphSpec = group.spec.for_one()
        self.row = row
        self.end = 0  # rows of the cache that may hold something
        self.asked: Window | None = None
        self.suspend: Callable[[], None] | None = None  # set while a turn is under way: waits for a launch
        self.launched = 0.0  # seconds of the launches it waited for in turns
        self.replays = group.context.replays
        self._group = group
        self._windows = {profile.name: _private_window(self.spec, profile) for profile in self.spec.profiles}
        self._failure: BaseException | None = None
        self._logits: tuple[Window, int, NDArray[np.float32] | None] | None = None
        self._closed = False

    @property
    def failed(self) -> bool:
        """Whether a launch over its caches went wrong since they were zeroed."""
        return self._failure is not None

    def window(self, profile: str) -> Window:
        return self._windows[profile]

    def run(self, window: Window) -> None:
        """Wait for a launch with the other lanes; outside a turn it is launched alone, at once."""
        self._require_usable()
        self.asked = window
        if self.suspend is not None:
            self.suspend()
        else:
            self._group.launch([self])
        self._require_usable()

    def logits(self, window: Window) -> NDArray[np.float32]:
        if not _has_logits(self.spec, window.profile):
            raise no_logits(self.spec, window.profile)
        assert self._logits is not None, "logits are asked for after a run"
        launched, index, saved = self._logits
        logits = self._group.context.logits(launched)[index : index + 1] if saved is None else saved
        return logits[:, : window.profile.rows]

    def keep(self, start: int, rows: NDArray[np.int64]) -> None:
        self._require_usable()
        self._group.context.keep(self.row, start, rows)

    def copy_rows(self, source: Context, count: int) -> None:
        self._require_usable()
        assert isinstance(source, Lane), "contexts of one engine are of one kind"
        source._require_usable()
        self._group.context.copy_rows(self.row, source._group.context, source.row, count)
        self.end = count

    def cache(self) -> dict[str, NDArray[np.generic]]:
        return self._group.context.cache(self.row)

    def zero(self) -> None:
        self._group.context.zero(self.row)
        self._failure, self.end = None, 0

    def vacate(self, kept: int = 0) -> None:
        """Show that all but its first `kept` rows are not needed any more: neighbours may be launched over them."""
        if self._failure is not None:
            self.zero()
        self.end = min(self.end, kept)

    def close(self) -> None:
        if not self._closed:
            self._closed, self.end, self.asked = True, 0, None
            self._group.leave()

    def fail(self, error: BaseException) -> None:
        """Note that a launch over its caches went wrong."""
        self.asked, self._failure, self._logits = None, error, None

    def take(self, window: Window, index: int, seconds: float) -> None:
        """Note what the launch answered its window with."""
        asked, self.asked = self.asked, None
        assert asked is not None
        if self.suspend is not None:
            self.launched += seconds
        valid = asked.profile.width if asked.query_lengths is None else int(asked.query_lengths[0])
        self.end = int(asked.cache_length[0]) + rows_written(self.spec, valid)
        for name in _OUTPUTS:
            into, found = getattr(asked, name), getattr(window, name)
            if into is not None and found is not None:
                into[0] = found[index, : into.shape[1]]
        self._logits = (window, index, None)

    def rescue_logits(self, profile: Profile, size: int) -> None:
        """Copy what it may still ask for, before a launch without it writes over them."""
        if self._logits is None:
            return
        window, index, saved = self._logits
        overwritten = window.profile.name == profile.name and index < size
        if saved is None and overwritten and _has_logits(self.spec, profile):
            copied = self._group.context.logits(window)[index : index + 1].copy()
            self._logits = (window, index, copied)

    def _require_usable(self) -> None:
        if self._closed:
            raise WrongState("the lane is closed; take a new batch")
        if isinstance(self._failure, Exception):
            raise EngineFailed(
                f"a launch that this sequence was part of failed: {self._failure}"
            ) from self._failure
        if self._failure is not None:
            raise self._failure


def _has_logits(spec: GraphSpec, profile: Profile) -> bool:
    return any(profile.computes(tensor.name) for tensor in spec.outputs if tensor.name in _LOGITS)


def _stage(window: Window, index: int, asked: Window | None) -> None:
    """Row `index` of a launch is what a lane asked for, padded to its width."""
    assert asked is not None
    stage(
        window,
        asked.input_ids[0],
        int(asked.cache_length[0]),
        lane=index,
        positions=asked.position_ids[0],
        sees=None if asked.window_mask is None else asked.window_mask[0],
        hidden=None if asked.hidden is None else asked.hidden[0],
        rows=asked.logits_rows[0],
        valid=None if asked.query_lengths is None else int(asked.query_lengths[0]),
    )


def _stage_idle(window: Window, index: int, end: int) -> None:
    """Row `index` of a launch belongs to no lane that asked: it writes from `end` on, and its answer is not read."""
    stage(window, _IDLE_ID, end, lane=index, sees=_IDLE_MASK, hidden=_IDLE_HIDDEN, rows=_IDLE_ID)


def _private_window(spec: GraphSpec, profile: Profile) -> Window:
    host: dict[str, NDArray[Any]] = dict(_private_tensors(spec, profile))
    return staged_window(spec, profile, host)


def _private_tensors(spec: GraphSpec, profile: Profile) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield what one sequence reads and writes in addition to caches and logits."""
    apart = (
        {tensor.name for tensor in cached_inputs(spec)}
        | {pair.output for pair in spec.aliases}
        | set(_LOGITS)
    )
    read = [tensor for tensor in spec.inputs if tensor.name not in apart]
    filled = [t for t in spec.outputs if t.name not in apart and profile.computes(t.name)]
    for tensor in (*read, *filled):
        yield tensor.name, np.zeros(shape_of(tensor, spec, profile), HOST_TYPES[tensor.dtype])
