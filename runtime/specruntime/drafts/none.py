"""The draft that proposes nothing: plain decoding, the baseline in every bundle."""

import numpy as np
from numpy.typing import NDArray

from specruntime.drafts import NOTHING, Draft, Proposal, Room, Verdict
from specruntime.sampling import Sampler
from specruntime.statistics import EngineTally


class NoProposer:
    k = 0

    def __init__(self) -> None:
        self.tally = EngineTally()

    def propose(self, tokens: NDArray[np.int64], room: Room, sampler: Sampler) -> Proposal:
        return NOTHING

    def observe(self, verdict: Verdict) -> None: ...

    def start_from(self, source: Draft, length: int) -> None: ...

    def rewind(self, length: int) -> None: ...

    def reset(self) -> None: ...

    def close(self) -> None: ...
