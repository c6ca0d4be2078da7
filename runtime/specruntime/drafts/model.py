"""A smaller model as the draft: its own graph, its own KV cache, one step per drafted token.

Owns the catch-up: after a round in which all k drafts were accepted, the draft has not seen its own last token, and
feeds two tokens first. It falls out of comparing the rows in its cache with the tokens that were committed.
"""

import numpy as np
from numpy.typing import NDArray

from specruntime.drafts import NOTHING, Proposal, Room
from specruntime.drafts.candidates import next_draft, room_for_laws
from specruntime.drafts.own_cache import SpeculatingDraft
from specruntime.engine import Context
from specruntime.sampling import Sampler
from specruntime.windows import Feeder, Rows


class ModelProposer(SpeculatingDraft[Feeder]):
    """Proposes the draft model's own continuation."""

    def __init__(self, context: Context, *, k: int, stop_below: float | None = None) -> None:
        """`stop_below`: the drafted token that the model gives less probability than this is the last of its round."""
        super().__init__(Feeder(context), k=k)
        self._stop_below = stop_below

    def propose(self, tokens: NDArray[np.int64], room: Room, sampler: Sampler) -> Proposal:
        # Row len(tokens) + n - 2 is the last one that n drafts write; past its capacity the draft stays silent.
        count = min(room.depth, room.nodes, self.k, self._feeder.capacity - len(tokens) + 1)
        if count < 1:
            return NOTHING
        self._keep_confirmed(tokens[:-1])  # the last token is always fed anew
        with self._engine_calls():
            proposal = self._draft(tokens, count, sampler)
        self.cache_length = len(tokens)
        self._speculated = proposal.ids[:-1].tolist()
        return proposal

    def _draft(self, tokens: NDArray[np.int64], count: int, sampler: Sampler) -> Proposal:
        """Feeds what was committed since (two tokens after full acceptance), then each draft but the last."""
        ids = np.empty(count, dtype=np.int64)
        laws = room_for_laws(count, self._feeder.vocab_size, sampler)
        rows = self._feeder.feed(tokens[self.cache_length :], self.cache_length)
        for depth in range(count):
            ids[depth] = self._choose(rows, ids[:depth], laws, sampler)
            if depth + 1 == count or self._doubts(rows, int(ids[depth])):
                break
            rows = self._feeder.feed(ids[depth : depth + 1], len(tokens) + depth)
        return Proposal(ids[: depth + 1], None if laws is None else laws[: depth + 1])

    def _doubts(self, rows: Rows, token: int) -> bool:
        """Whether the model's own probability of the token, before temperature and truncation, is below the bound."""
        if self._stop_below is None:
            return False
        logits = self._feeder.logits(rows)[0]
        likelier = np.exp(logits - logits[token], dtype=np.float64).sum()
        return bool(self._stop_below * likelier > 1)

    def _choose(
        self, rows: Rows, drafted: NDArray[np.int64], laws: NDArray[np.float32] | None, sampler: Sampler
    ) -> int:
        if sampler.greedy_ids_suffice:
            return int(self._feeder.top_ids(rows)[0])
        return next_draft(self._feeder.logits(rows)[0], drafted.tolist(), laws, sampler)
