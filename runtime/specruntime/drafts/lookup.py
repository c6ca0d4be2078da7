"""Kinds without a graph: `none`, and `ngram`, which is prompt lookup (Saxena, "Prompt lookup decoding", 2023).

Prompt lookup copies what followed the last n tokens when they last occurred. Stateless: each proposal searches the
committed tokens from scratch, so a rewind needs no bookkeeping. The search narrows a vector of candidate positions one
token at a time and takes some tens of microseconds at a few thousand tokens.
"""

from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from specruntime.drafts.draft import NOTHING, Draft, Proposal, Room
from specruntime.drafts.kind import ChainSpec, DraftSpec
from specruntime.engines.protocol import Context
from specruntime.manifest.graph import GraphSpec
from specruntime.manifest.numbers import Size
from specruntime.manifest.refusals import refuse
from specruntime.sampling.sampler import Sampler


class NoneDraft(DraftSpec):
    """Plain decoding."""

    c_numbers: ClassVar = {"none": (0, "nothing")}

    kind: Literal["none"] = "none"

    @property
    def k(self) -> int:
        return 0

    @property
    def nodes(self) -> int:
        return 0

    def proposer(self, own: Context | None, target: Context | None, vocab_size: int) -> Draft:
        return NoProposer()


class NgramDraft(ChainSpec):
    """Prompt lookup: match the last n tokens (n from `max_n` down to `min_n`) and copy up to `k` that followed."""

    free: ClassVar = True
    c_numbers: ClassVar = {"ngram": (1, "the continuation of the last tokens where they occurred before")}

    kind: Literal["ngram"] = "ngram"
    max_n: Size
    min_n: Size

    def check(self, target: GraphSpec) -> None:
        self.check_lengths("draft")

    def check_lengths(self, key: str) -> None:
        """Raise `BundleInvalid` for lengths that contradict each other; `key` is where the lookup stands."""
        if self.min_n > self.max_n:
            refuse(f"{key}.min_n is {self.min_n}, above {key}.max_n {self.max_n}")

    def proposer(self, own: Context | None, target: Context | None, vocab_size: int) -> Draft:
        return NgramProposer(k=self.k, max_n=self.max_n, min_n=self.min_n)


class NgramProposer(Draft):
    """Copies up to `k` tokens that followed the longest recent n-gram, n from `max_n` down to `min_n`."""

    drafts_behind = True

    def __init__(self, *, k: int, max_n: int, min_n: int) -> None:
        assert 1 <= min_n <= max_n and k >= 1, "a manifest with other lengths is refused"
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

    drafts_behind = True

    def __init__(self) -> None:
        super().__init__(0)

    def propose(self, tokens: NDArray[np.int64], room: Room, sampler: Sampler) -> Proposal:
        return NOTHING
