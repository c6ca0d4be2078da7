"""A draft model whose k greedy steps are one graph: one launch per proposal, full acceptance included.

The graph takes a window, answers with the k ids that follow its last valid row, and leaves in its cache the window's
rows and those of the first k - 1 drafts. While drafting the window is always the last two committed tokens: a row that
is in the cache already is written again with the same content, and after full acceptance nothing is missing.
"""

import numpy as np
from numpy.typing import NDArray

from specruntime.drafts import NOTHING, Proposal, Room, Verdict
from specruntime.engine import Context, Window
from specruntime.errors import InvalidArgument
from specruntime.sampling import Sampler
from specruntime.statistics import EngineTally
from specruntime.windows import run_counted

DRAFT_WIDTH = 2


class FusedProposer:
    """Proposes the draft model's greedy continuation, whatever the sampling of the answer."""

    def __init__(self, context: Context, *, k: int) -> None:
        """Raises `InvalidArgument` for a graph without a window of two tokens, or with another k."""
        self.k = k
        self.cache_length = 0
        self.tally = EngineTally()
        self._context = context
        self._speculated: list[int] = []
        self._failed = False
        names = sorted(context.spec.profiles, key=lambda profile: profile.width)
        self._windows = [context.window(profile.name) for profile in names]
        self._require_fused()
        for window in self._windows:
            if window.window_mask is not None:
                window.window_mask[0] = np.tri(window.profile.width, dtype=np.bool_)

    def propose(self, tokens: NDArray[np.int64], room: Room, sampler: Sampler) -> Proposal:
        count = min(room.depth, room.nodes, self.k)
        self._keep_confirmed(tokens)
        if count < 1 or not self._fits(len(tokens)):
            return NOTHING
        self._failed = True  # until every engine call below has returned
        ids = self._feed(tokens, self.cache_length)
        self._failed = False
        return Proposal(ids[:count])

    def observe(self, verdict: Verdict) -> None: ...

    def rewind(self, length: int) -> None:
        self.cache_length = min(self.cache_length, length)
        self._speculated = []

    def reset(self) -> None:
        self.rewind(0)
        if self._failed:
            self._context.zero()
            self._failed = False

    def close(self) -> None:
        self._context.close()

    def _feed(self, tokens: NDArray[np.int64], start: int) -> NDArray[np.int64]:
        """Feeds tokens from row `start` on; the [k] ids drafted behind the last of them.

        The last two tokens go together even where one is missing: that window needs no padding.
        """
        while True:
            start = min(start, max(len(tokens) - DRAFT_WIDTH, 0))
            window = self._window(start, len(tokens) - start)
            width = window.profile.width
            chunk = tokens[start : start + width]
            self._run(window, chunk, start)
            start += len(chunk)
            if start == len(tokens):
                break
        ids: NDArray[np.int64] = window.top_ids[0].copy()
        self.cache_length = len(tokens)
        # Behind a padded window the drafts' rows do not follow the tokens' rows: they count for nothing then.
        self._speculated = ids[:-1].tolist() if len(chunk) == width else []
        return ids

    def _run(self, window: Window, ids: NDArray[np.int64], start: int) -> None:
        count, width = len(ids), window.profile.width
        window.input_ids[0, :count] = ids
        window.input_ids[0, count:] = 0
        window.position_ids[0] = np.arange(start, start + width)
        window.cache_length[0] = start
        window.logits_rows[0, 0] = count - 1
        run_counted(self._context, window, self.tally)

    def _window(self, start: int, count: int) -> Window:
        """The narrowest window that takes all `count` tokens, or the widest; only such that fit behind `start`."""
        fitting = [window for window in self._windows if self._rows(window) <= self._room(start)]
        return next((window for window in fitting if window.profile.width >= count), fitting[-1])

    def _fits(self, length: int) -> bool:
        """Whether the window of the last two of `length` tokens fits, with the drafts' rows behind it."""
        return self._rows(self._windows[0]) <= self._room(max(length - DRAFT_WIDTH, 0))

    def _rows(self, window: Window) -> int:
        """Cache rows that a run of this window writes."""
        return window.profile.width + self.k - 1

    def _room(self, start: int) -> int:
        return self._context.spec.capacity - start

    def _keep_confirmed(self, tokens: NDArray[np.int64]) -> None:
        """Counts speculated rows as committed while they equal the tokens."""
        for row in self._speculated:
            if self.cache_length >= len(tokens) or row != tokens[self.cache_length]:
                break
            self.cache_length += 1
        self._speculated = []
        self.cache_length = min(self.cache_length, len(tokens))

    def _require_fused(self) -> None:
        narrowest, drafted = self._windows[0].profile.width, self._windows[0].top_ids.shape[1]
        if narrowest != DRAFT_WIDTH or drafted != self.k:
            raise InvalidArgument(
                f"{self._context.spec.file} has a narrowest window of {narrowest} and drafts {drafted} tokens, "
                f"expected a window of {DRAFT_WIDTH} and {self.k} tokens: build the bundle again"
            )
