"""Feeding token ids into a context: which profile, what its staging buffers hold, which row answers.

`stage` fills every window there is, of target and drafts, of batches and of measurements: the one place that knows
what each input holds and how a window is padded. A `Feeder` chooses the windows of one sequence: it never writes past
the cache, and knows how the rows of a profile line up with the tokens fed.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from specruntime import clock
from specruntime.engines.protocol import Context, Window
from specruntime.errors import InvalidArgument
from specruntime.manifest.graph import GraphSpec, Profile
from specruntime.statistics import EngineCounters

# What one more row of a window costs, in launches of width 1, whose time goes into reading the weights. Measured with
# SmolLM2-135M on two CPU cores, widths 4 to 128; it only orders the ways to cut a prompt into windows.
ROW_COST = 1 / 12


def stage(
    window: Window,
    ids: NDArray[np.int64],
    start: int,
    *,
    lane: int = 0,
    positions: NDArray[np.int64] | None = None,
    sees: NDArray[np.bool_] | None = None,
    hidden: NDArray[np.float32] | None = None,
    rows: NDArray[np.int64] | None = None,
    valid: int | None = None,
) -> None:
    """Fill the inputs of one sequence, batch row `lane`, with ids [n], 1 <= n <= W, behind `start` cache rows.

    `positions` [n]; None: those of a chain, from `start` on. `sees` [n, n]: row i sees row j; None leaves the mask as
    it is, which is a chain's unless a tree was staged before: see `stage_chain`. `hidden` [n or 1, h]; None leaves it.
    `rows`, at most R: the window rows that get logits; None: all where the profile has as many, else the last id.
    `valid`: what `query_lengths` says; None: n. Rows behind the ids are padding: id 0, hidden 0, and a chain's
    position and mask.
    """
    count, width, judged = len(ids), window.profile.width, window.profile.rows
    window.input_ids[lane, :count] = ids
    window.input_ids[lane, count:] = 0
    np.add(_offsets(width), start, out=window.position_ids[lane])
    if positions is not None:
        window.position_ids[lane, :count] = positions
    window.cache_length[lane] = start
    if window.query_lengths is not None:
        window.query_lengths[lane] = count if valid is None else valid
    if rows is not None:
        window.logits_rows[lane, : len(rows)] = rows
        window.logits_rows[lane, len(rows) :] = 0
    elif judged == 1:
        window.logits_rows[lane, 0] = count - 1
    else:
        window.logits_rows[lane] = _offsets(judged)
    if hidden is not None and window.hidden is not None:
        window.hidden[lane, :count] = hidden
        window.hidden[lane, count:] = 0
    if sees is not None and window.window_mask is not None:
        if count < width:
            stage_chain(window, lane)
        window.window_mask[lane, :count, :count] = sees


def stage_chain(window: Window, lane: int = 0) -> None:
    """Write the mask of a chain: row i sees rows 0 to i."""
    if window.window_mask is not None:
        window.window_mask[lane] = np.tri(window.profile.width, dtype=np.bool_)


@cache
def _offsets(width: int) -> NDArray[np.int64]:
    return np.arange(width, dtype=np.int64)


EachWindow = Callable[[Window, int, int], None]  # (window, its offset in the cache, ids it held)


@dataclass(frozen=True, slots=True)
class Rows:
    """The judged rows of the last run: row `first + i` scores the token after the i-th judged id."""

    window: Window
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class _StagedTree:
    """The tree that a window's mask shows: `key` are the bytes of its parents."""

    key: bytes
    depths: NDArray[np.int64]  # [W]


class Feeder:
    """Writes windows of committed or drafted ids into one context and runs them."""

    def __init__(self, context: Context) -> None:
        """Raise `InvalidArgument` for a graph whose batch or profiles this loop cannot drive."""
        spec = context.spec
        _refuse_unsupported(spec)
        self.context = context
        self.capacity = spec.capacity
        self.vocab_size = spec.vocab_size
        self.counters = EngineCounters()
        usable = [profile for profile in spec.profiles if profile.computes("top_ids")]
        by_width = sorted(usable, key=lambda profile: (profile.width, profile.rows))
        self._windows = [context.window(profile.name) for profile in by_width]
        self._judging = [window for window in self._windows if window.profile.rows == window.profile.width]
        self._trees: dict[str, _StagedTree] = {}  # by profile, where the window's mask is not a chain's
        for window in self._windows:
            stage_chain(window)

    def judged_limit(self, start: int) -> int:
        """Return the most rows one window can judge at cache offset `start`; 0 when the cache is full."""
        room = self.capacity - start
        return max((w.profile.width for w in self._judging if w.profile.width <= room), default=0)

    def feed(self, ids: NDArray[np.int64], start: int, each: EachWindow | None = None) -> Rows:
        """Feed ids [n] at cache offset `start` in as many windows as they need; judges the last id. n >= 1.

        `each` is called after every window with the window, its offset and how many ids it held.
        """
        assert 1 <= len(ids) <= self.capacity - start, "sessions and drafts never feed past the cache"
        while True:
            window = self._chunk_window(start, len(ids))
            width = window.profile.width
            rows = self._run(window, ids[:width], start, judged=1)
            if each is not None:
                each(window, start, min(len(ids), width))
            if len(ids) <= width:
                return rows
            ids, start = ids[width:], start + width

    def judge(
        self,
        ids: NDArray[np.int64],
        start: int,
        parents: NDArray[np.int64] | None = None,
        *,
        behind: int = 0,
    ) -> Rows:
        """Feed ids [n] at cache offset `start` in one window and judges each; n <= `judged_limit(start)`.

        The first `behind` are a chain that is not judged. `parents` [n - behind - 1]: the row under which each id after
        the next hangs, an earlier one, rows counted from that next one; None: a chain.
        Raises `InvalidArgument` for a tree where the graph judges chains only.
        """
        assert len(ids) <= self.judged_limit(start), "drafts keep to the room they are given"
        window = next(w for w in self._judging if w.profile.width >= len(ids))
        if parents is not None and behind:
            parents = np.concatenate([np.arange(behind), parents + behind])
        return self._run(window, ids, start, judged=len(ids) - behind, parents=parents)

    def _chunk_window(self, start: int, count: int) -> Window:
        """Return the next window to feed `count` ids with: of the widths that fit, the one estimated to finish
        first.
        """
        room = self.capacity - start
        fitting = [window for window in self._windows if window.profile.width <= room]
        if count == 1:
            return fitting[0]

        def launch(rows: int) -> float:
            width = next(window.profile.width for window in fitting if window.profile.width >= rows)
            return 1 + ROW_COST * width

        def finish(window: Window) -> float:
            width = window.profile.width
            full, rest = divmod(count, width)
            return full * launch(width) + (launch(rest) if rest else 0)

        return min(fitting, key=finish)

    def _run(
        self,
        window: Window,
        ids: NDArray[np.int64],
        start: int,
        judged: int,
        parents: NDArray[np.int64] | None = None,
    ) -> Rows:
        """Stage and run ids [n <= W], and say where the last `judged` rows are."""
        count = len(ids)
        depths = self._depths(window, parents) if parents is not None or self._trees else None
        stage(window, ids, start, positions=None if depths is None else depths[:count] + start)
        run_counted(self.context, window, self.counters)
        return Rows(window, 0 if window.profile.rows == 1 else count - judged, judged)

    def _depths(self, window: Window, parents: NDArray[np.int64] | None) -> NDArray[np.int64] | None:
        """[W] the depth of each row of a tree, None of a chain; stages the mask if it is not yet there."""
        name = window.profile.name
        staged = self._trees.get(name)
        if parents is None:
            if staged is not None:
                stage_chain(window)
                del self._trees[name]
            return None
        key = parents.tobytes()
        if staged is None or staged.key != key:
            if window.window_mask is None:
                raise InvalidArgument(
                    f"{self.context.spec.file} has no window_mask, so it judges chains and no trees: "
                    "build the bundle with a tree in its recipe"
                )
            staged = self._trees[name] = _stage_tree(window.window_mask[0], parents, key)
        return staged.depths

    def logits(self, rows: Rows) -> NDArray[np.float32]:
        """[count, vocab] of the judged rows, without the vocabulary's padding; valid until the next run."""
        return self.context.logits(rows.window)[0, rows.first : rows.first + rows.count, : self.vocab_size]

    def top_ids(self, rows: Rows) -> NDArray[np.int64]:
        """[count] argmax of the judged rows; valid until the next run."""
        return rows.window.top_ids[0, rows.first : rows.first + rows.count]


def run_counted(context: Context, window: Window, counters: EngineCounters) -> None:
    """Run a staged window and books the call, its seconds and whether a captured graph was replayed."""
    profile = window.profile.name
    replayed, started = context.replays.get(profile, 0), clock.now()
    context.run(window)
    counters.add(profile, clock.now() - started, replayed=context.replays.get(profile, 0) > replayed)


def _refuse_unsupported(spec: GraphSpec) -> None:
    """Raise `InvalidArgument` for what this loop does not drive: many sequences, and profiles without a row rule."""
    if spec.batch != 1:
        raise InvalidArgument(
            f"{spec.file} is bound for {spec.batch} sequences, expected 1: a session decodes one; take one lane of "
            "`LoadedBundle.new_batch` for each"
        )
    odd = [profile for profile in spec.profiles if profile.rows not in (1, profile.width)]
    if odd:
        raise InvalidArgument(
            f"{spec.file}: {_described(odd)} must have one row or as many rows as its width"
        )
    if not any(profile.width == 1 and profile.computes("top_ids") for profile in spec.profiles):
        raise InvalidArgument(
            f"{spec.file} has {_described(spec.profiles)}: a profile of width 1 is needed for the last cache rows"
        )


def _described(profiles: Iterable[Profile]) -> str:
    return ", ".join(f"profile {p.name!r} ({p.width} wide, {p.rows} rows)" for p in profiles) or "no profile"


def _stage_tree(mask: NDArray[np.bool_], parents: NDArray[np.int64], key: bytes) -> _StagedTree:
    """Write mask [W, W]: row i sees itself and its ancestors; rows behind the tree are padding and stay a chain's."""
    width = len(mask)
    mask[:] = np.tri(width, dtype=np.bool_)
    depths = list(range(width))
    for row, parent in enumerate(parents.tolist(), start=1):
        mask[row, :row] = mask[parent, :row]
        depths[row] = depths[parent] + 1
    return _StagedTree(key, np.array(depths, dtype=np.int64))
