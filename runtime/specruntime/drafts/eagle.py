"""EAGLE, EAGLE-2 and EAGLE-3 drafts: one decoder layer that continues the target's own features.

Owns the features of the committed positions and how many pairs of them are in the draft's cache. Each round extends
that cache by what was committed, with the target's features; what the draft wrote while looking ahead counts for
nothing. https://arxiv.org/abs/2401.15077, https://arxiv.org/abs/2406.16858, https://arxiv.org/abs/2503.01840.
"""

import numpy as np
from numpy.typing import NDArray

from specruntime.drafts import NOTHING, Draft, Proposal, Room, Verdict
from specruntime.drafts.growers import ChainGrower, DynamicGrower, Grower, StaticGrower
from specruntime.drafts.own_cache import CachingDraft
from specruntime.drafts.pairs import Answer, Ladder, PairFeeder
from specruntime.engine import Context
from specruntime.manifest import EagleDraft
from specruntime.sampling import Sampler


class EagleProposer(CachingDraft[PairFeeder]):
    """Proposes a chain, a static tree or a dynamic tree, as the manifest says. A row of its cache is a pair."""

    def __init__(self, context: Context, spec: EagleDraft, *, vocab_size: int) -> None:
        """Raises `InvalidArgument` for a graph whose windows cannot grow the tree or name too few candidates."""
        super().__init__(PairFeeder(context, vocab_size), k=spec.k)
        self._grower = _grower(self._feeder, spec)
        self._features = np.zeros((self._feeder.capacity, self._feeder.hidden_size), np.float32)
        self._observed = 0  # positions whose features are known

    def propose(self, tokens: NDArray[np.int64], room: Room, sampler: Sampler) -> Proposal:
        # n tokens make n - 1 pairs; drafting `depth` tokens writes depth - 1 cache rows behind them.
        pairs = len(tokens) - 1
        depth = min(room.depth, self.k, self._feeder.capacity - pairs + 1)
        if pairs < 1 or depth < 1 or room.nodes < 1:
            return NOTHING
        assert self._observed >= pairs, "the session shows a draft every target window"
        with self._engine_calls():
            proposal = self._grower.grow(
                lambda ladder: self._extend(ladder, tokens), pairs, Room(depth, room.nodes), sampler
            )
        self.cache_length = pairs
        return proposal

    def observe(self, verdict: Verdict) -> None:
        assert verdict.features is not None and verdict.start <= self._observed
        # Beyond its own capacity the draft is silent and needs no features.
        stop = min(verdict.start + verdict.kept, len(self._features))
        if stop > verdict.start:
            self._features[verdict.start : stop] = verdict.features[: stop - verdict.start]
        self._observed = verdict.start + verdict.kept

    def start_from(self, source: Draft, length: int) -> None:
        assert isinstance(source, EagleProposer), "the drafts of a bundle are of one kind"
        super().start_from(source, max(length - 1, 0))
        self._observed = min(source._observed, length)
        self._features[: self._observed] = source._features[: self._observed]

    def rewind(self, length: int) -> None:
        # Features say what led to a position; pair t holds token t + 1 as well.
        self._observed = min(self._observed, length)
        super().rewind(max(length - 1, 0))

    def _extend(self, ladder: Ladder, tokens: NDArray[np.int64]) -> Answer:
        """Feeds the pairs that are not in the cache, the last one always; the answer is about the next token."""
        start = min(self.cache_length, len(tokens) - 2)
        return self._feeder.extend(ladder, self._features, tokens, start)


def _grower(feeder: PairFeeder, spec: EagleDraft) -> Grower:
    if spec.dynamic is not None:
        return DynamicGrower(feeder, spec.dynamic, depth=spec.k)
    if spec.tree is not None:
        return StaticGrower(feeder, spec.tree)
    return ChainGrower(feeder, stop_below=spec.stop_below or 0.0)
