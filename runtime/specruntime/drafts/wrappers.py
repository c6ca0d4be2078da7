"""A draft that is another draft: what stands around one says only what differs."""

import numpy as np
from numpy.typing import NDArray

from specruntime.drafts.draft import NOTHING, Draft, Proposal, Room, Verdict
from specruntime.sampling.sampler import Sampler
from specruntime.statistics import EngineCounters


class ForwardingDraft(Draft):
    """Forwards every call."""

    def __init__(self, draft: Draft) -> None:
        """Take ownership of `draft`."""
        self._draft = draft
        super().__init__(draft.k)

    @property
    def counters(self) -> EngineCounters:
        return self._draft.counters

    @counters.setter
    def counters(self, counters: EngineCounters) -> None:
        self._draft.counters = counters

    @property
    def drafts_behind(self) -> bool:  # type: ignore[override]  # of the draft at hand
        return self._draft.drafts_behind

    def propose(self, tokens: NDArray[np.int64], room: Room, sampler: Sampler) -> Proposal:
        return self._draft.propose(tokens, room, sampler)

    def observe(self, verdict: Verdict) -> None:
        self._draft.observe(verdict)

    def start_from(self, source: Draft, length: int) -> None:
        assert isinstance(source, ForwardingDraft), "the sessions of a bundle wrap their drafts alike"
        self._draft.start_from(source._draft, length)

    def rewind(self, length: int) -> None:
        self._draft.rewind(length)

    def reset(self) -> None:
        self._draft.reset()

    def close(self) -> None:
        self._draft.close()


class DraftSwitch(ForwardingDraft):
    """Another draft while `on`, nothing while off. The draft observes the target either way."""

    def __init__(self, draft: Draft) -> None:
        super().__init__(draft)
        self.on = True

    def propose(self, tokens: NDArray[np.int64], room: Room, sampler: Sampler) -> Proposal:
        return super().propose(tokens, room, sampler) if self.on else NOTHING


FILLER = 0


class FullWidthDraft(ForwardingDraft):
    """Another draft's proposals, filled up with token 0 to `k` ids. Over a draft of kind none: an empty draft at width
    k + 1. Fillers are judged like any drafted token, in a tree as children of row 0. For the `match` rule only: they
    have no distribution they were drawn from.
    """

    def __init__(self, draft: Draft, k: int) -> None:
        super().__init__(draft)
        self.k = k

    def propose(self, tokens: NDArray[np.int64], room: Room, sampler: Sampler) -> Proposal:
        drafted = super().propose(tokens, room, sampler)
        if drafted.parents is None:
            missing = min(room.depth, room.nodes, self.k) - len(drafted.ids)
            return Proposal(_filled(drafted.ids, missing, FILLER))
        missing = min(room.nodes, self.k) - len(drafted.ids)
        return Proposal(_filled(drafted.ids, missing, FILLER), parents=_filled(drafted.parents, missing, 0))


def _filled(array: NDArray[np.int64], missing: int, value: int) -> NDArray[np.int64]:
    return np.concatenate([array, np.full(missing, value, dtype=np.int64)])
