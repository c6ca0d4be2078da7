"""Prompt lookup: what followed the last n tokens when they last occurred (Saxena, "Prompt lookup decoding", 2023).

Stateless: each proposal searches the committed tokens anew, so a rewind needs no bookkeeping. The search narrows a
vector of candidate positions one token at a time and takes some tens of microseconds at a few thousand tokens.
"""

import numpy as np
from numpy.typing import NDArray

from specruntime.drafts.draft import NOTHING, Draft, Proposal, Room
from specruntime.errors import InvalidArgument
from specruntime.sampling.sampler import Sampler


class NgramProposer(Draft):
    """Copies up to `k` tokens that followed the longest recent n-gram, n from `max_n` down to `min_n`."""

    def __init__(self, *, k: int, max_n: int, min_n: int) -> None:
        if not (1 <= min_n <= max_n and k >= 1):
            raise InvalidArgument(
                f"ngram draft: found k={k}, max_n={max_n}, min_n={min_n}; needs k >= 1, 1 <= min_n <= max_n"
            )
        super().__init__(k)
        self.max_n = max_n
        self.min_n = min_n

    def propose(self, tokens: NDArray[np.int64], room: Room, sampler: Sampler) -> Proposal:
        count = min(room.depth, room.nodes, self.k)
        if count < 1:
            return NOTHING
        start = find_continuation(tokens, self.max_n, self.min_n)
        return NOTHING if start is None else Proposal(tokens[start : start + count])


def find_continuation(tokens: NDArray[np.int64], max_n: int, min_n: int) -> int | None:
    """Index of the token that followed the most recent earlier occurrence of the longest matching suffix of `tokens`.

    The suffix has between `min_n` and `max_n` tokens; the occurrence may overlap it. None when nothing matches.
    """
    last = len(tokens) - 1
    # Where an earlier occurrence could end: every index before the last that holds the last token.
    ends = np.flatnonzero(tokens[:last] == tokens[last]) if last >= 0 else np.empty(0, dtype=np.int64)
    matched = 1
    while matched < max_n and ends.size:
        longer = ends[np.searchsorted(ends, matched) :]
        longer = longer[tokens[longer - matched] == tokens[last - matched]]
        if not longer.size:
            break
        ends = longer
        matched += 1
    return int(ends[-1]) + 1 if ends.size and matched >= min_n else None


class NoProposer(Draft):
    """Proposes nothing."""

    def __init__(self) -> None:
        super().__init__(0)

    def propose(self, tokens: NDArray[np.int64], room: Room, sampler: Sampler) -> Proposal:
        return NOTHING
