"""Drafting at one width only, so that two runs differ in their drafts and in nothing else.

A kernel may round differently at another window width. Where that matters (precisions below fp32) speculative and
plain decoding are compared with every window at its widest.
"""

import numpy as np
from numpy.typing import NDArray

from specruntime.drafts import Draft, Proposal, Room
from specruntime.drafts.forwarding import ForwardingDraft
from specruntime.sampling import Sampler

FILLER = 0


class FullWidthDraft(ForwardingDraft):
    """Another draft's proposals, filled up with token 0 to `k` ids. Over a draft of kind none: an empty draft at width
    k + 1. Fillers are judged like any drafted token, in a tree as children of row 0. For the `match` rule only: they
    have no law they were drawn from.
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
