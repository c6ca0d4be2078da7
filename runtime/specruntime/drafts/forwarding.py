"""A draft that is another draft: what stands around one says only what differs."""

import numpy as np
from numpy.typing import NDArray

from specruntime.drafts import Draft, Proposal, Room, Verdict
from specruntime.sampling import Sampler
from specruntime.statistics import EngineTally


class ForwardingDraft:
    """Forwards every call."""

    def __init__(self, draft: Draft) -> None:
        """Takes ownership of `draft`."""
        self.k = draft.k
        self._draft = draft

    @property
    def tally(self) -> EngineTally:
        return self._draft.tally

    @tally.setter
    def tally(self, tally: EngineTally) -> None:
        self._draft.tally = tally

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
