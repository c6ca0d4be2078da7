"""A draft that can be told to propose nothing: one session serves speculative and plain answers."""

import numpy as np
from numpy.typing import NDArray

from specruntime.drafts import NOTHING, Draft, Proposal, Room
from specruntime.drafts.forwarding import ForwardingDraft
from specruntime.sampling import Sampler


class DraftSwitch(ForwardingDraft):
    """Another draft while `on`, nothing while off. What the draft must know of the target it is told either way."""

    def __init__(self, draft: Draft) -> None:
        super().__init__(draft)
        self.on = True

    def propose(self, tokens: NDArray[np.int64], room: Room, sampler: Sampler) -> Proposal:
        return super().propose(tokens, room, sampler) if self.on else NOTHING
