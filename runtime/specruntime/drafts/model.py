"""Kind `model`: a smaller model with its own graph and its own KV cache, one step per drafted token or one launch.

Owns the catch-up: after a round in which all k drafts were accepted, the draft has not seen its own last token, and
feeds two tokens first. It falls out of comparing the rows in its cache with the tokens that were committed.
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from specruntime.drafts.draft import NOTHING, Draft, Proposal, Room
from specruntime.drafts.kind import ChainSpec
from specruntime.drafts.own_cache import SpeculatingDraft
from specruntime.drafts.trees import next_draft, room_for_probabilities
from specruntime.engines.protocol import Context, Window
from specruntime.engines.windows import Feeder, Rows, run_counted, stage, stage_chain
from specruntime.manifest.contracts import MODEL
from specruntime.manifest.graph import GraphSpec
from specruntime.manifest.numbers import Share
from specruntime.manifest.refusals import refuse
from specruntime.sampling.sampler import Sampler
from specruntime.statistics import EngineCounters

DRAFT_WIDTH = 2  # of the narrowest window of a fused draft: the two tokens of a round that accepted all


class ModelDraft(ChainSpec):
    """A smaller checkpoint that proposes `k` tokens: one step each, or all of them in one `fused` launch.

    It drafts no further once its own probability of a drafted token falls below `stop_below`.
    """

    contract: ClassVar = MODEL
    c_numbers: ClassVar = {"model": (2, "a smaller model")}

    kind: Literal["model"] = "model"
    fused: bool = False
    stop_below: Share | None = None
    graph: GraphSpec

    def check(self, target: GraphSpec) -> None:
        drafted, expected = self.graph.drafted, self.k if self.fused else 1
        if drafted != expected:
            refuse(
                f"draft: its graph drafts {drafted} tokens a launch, expected {expected} (fused: {self.fused})"
            )
        if not self.fused:
            return
        if self.stop_below is not None:
            refuse(
                f"draft.stop_below is {self.stop_below} for a fused draft, whose steps are one launch; expected none"
            )
        narrowest = min(profile.width for profile in self.graph.profiles)
        if narrowest != DRAFT_WIDTH:
            refuse(
                f"draft.graph: the narrowest profile of a fused draft is {narrowest} wide, expected {DRAFT_WIDTH}"
            )

    def proposer(self, own: Context | None, target: Context | None, vocab_size: int) -> Draft:
        assert own is not None, "this kind has a graph"
        if self.fused:
            return FusedProposer(own, k=self.k)
        return ModelProposer(own, k=self.k, stop_below=self.stop_below)

    def first_seconds(self, size: int, step: float, times: Mapping[str, float]) -> float:
        return step if self.fused else size * step


class ModelProposer(SpeculatingDraft[Feeder]):
    """Proposes the draft model's own continuation."""

    drafts_behind = True

    def __init__(self, context: Context, *, k: int, stop_below: float | None = None) -> None:
        """`stop_below`: the drafted token that the model gives less probability than this is the last of its round."""
        super().__init__(Feeder(context), k=k)
        self._stop_below = stop_below

    def propose(self, tokens: NDArray[np.int64], room: Room, sampler: Sampler) -> Proposal:
        # Row len(tokens) + n - 2 is the last one that n drafts write; past its capacity the draft stays silent.
        count = min(room.depth, room.nodes, self.k, self._feeder.capacity - len(tokens) + 1)
        if count < 1:
            return NOTHING
        self._keep_confirmed(tokens[:-1])  # the last token is always fed again
        with self._engine_calls():
            proposal = self._draft(tokens, count, sampler)
        self.cache_length = len(tokens)
        self._speculated = proposal.ids[:-1].tolist()
        return proposal

    def _draft(self, tokens: NDArray[np.int64], count: int, sampler: Sampler) -> Proposal:
        """Feed what was committed since (two tokens after full acceptance), then each draft but the last."""
        ids = np.empty(count, dtype=np.int64)
        probabilities = room_for_probabilities(count, self._feeder.vocab_size, sampler)
        rows = self._feeder.feed(tokens[self.cache_length :], self.cache_length)
        drafted = 0
        while (token := self._choose(rows, ids[:drafted], probabilities, sampler)) is not None:
            ids[drafted] = token
            drafted += 1
            if drafted == count or self._doubts(rows, token) or sampler.ended((token,)):
                break
            rows = self._feeder.feed(ids[drafted - 1 : drafted], len(tokens) + drafted - 1)
        return Proposal(ids[:drafted], None if probabilities is None else probabilities[:drafted])

    def _doubts(self, rows: Rows, token: int) -> bool:
        """Whether the model's own probability of the token, before temperature and truncation, is below the bound."""
        if self._stop_below is None:
            return False
        logits = self._feeder.logits(rows)[0]
        likelier = np.exp(logits - logits[token], dtype=np.float64).sum()
        return bool(self._stop_below * likelier > 1)

    def _choose(
        self,
        rows: Rows,
        drafted: NDArray[np.int64],
        probabilities: NDArray[np.float32] | None,
        sampler: Sampler,
    ) -> int | None:
        if sampler.greedy_ids_suffice:
            return int(self._feeder.top_ids(rows)[0])
        return next_draft(self._feeder.logits(rows)[0], drafted.tolist(), probabilities, sampler)


class FusedProposer(SpeculatingDraft["FusedFeeder"]):
    """Proposes the draft model's greedy continuation, whatever the sampling of the answer."""

    drafts_behind = True

    def __init__(self, context: Context, *, k: int) -> None:
        super().__init__(FusedFeeder(context, k), k=k)

    def propose(self, tokens: NDArray[np.int64], room: Room, sampler: Sampler) -> Proposal:
        count = min(room.depth, room.nodes, self.k)
        self._keep_confirmed(tokens)
        if count < 1 or not self._feeder.fits(len(tokens)):
            return NOTHING
        with self._engine_calls():
            ids, padded = self._feeder.feed(tokens, self.cache_length)
        self.cache_length = len(tokens)
        # Behind a padded window the drafts' rows do not follow the tokens' rows: they count for nothing then.
        self._speculated = [] if padded else ids[:-1].tolist()
        return Proposal(ids[:count])


class FusedFeeder:
    """Runs the windows of one context, which draft k tokens each."""

    def __init__(self, context: Context, k: int) -> None:
        self.context = context
        self.counters = EngineCounters()
        self._k = k
        names = sorted(context.spec.profiles, key=lambda profile: profile.width)
        self._windows = [context.window(profile.name) for profile in names]
        assert self._windows[0].profile.width == DRAFT_WIDTH and self._windows[0].top_ids.shape[1] == k
        for window in self._windows:
            stage_chain(window)

    def fits(self, length: int) -> bool:
        """Whether the window of the last two of `length` tokens fits, with the drafts' rows behind it."""
        return self._rows(self._windows[0]) <= self._room(max(length - DRAFT_WIDTH, 0))

    def feed(self, tokens: NDArray[np.int64], start: int) -> tuple[NDArray[np.int64], bool]:
        """Feed tokens from row `start` on: the [k] ids drafted behind the last, and whether its window was padded.

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
                return window.top_ids[0].copy(), len(chunk) < width

    def _run(self, window: Window, ids: NDArray[np.int64], start: int) -> None:
        # The drafts' rows follow the whole window, its padding too, so all of its rows are valid.
        stage(window, ids, start, valid=window.profile.width)
        run_counted(self.context, window, self.counters)

    def _window(self, start: int, count: int) -> Window:
        """Return the narrowest window that takes all `count` tokens, or the widest; only such that fit behind
        `start`.
        """
        fitting = [window for window in self._windows if self._rows(window) <= self._room(start)]
        return next((window for window in fitting if window.profile.width >= count), fitting[-1])

    def _rows(self, window: Window) -> int:
        """Cache rows that a run of this window writes."""
        return window.profile.width + self._k - 1

    def _room(self, start: int) -> int:
        return self.context.spec.capacity - start
