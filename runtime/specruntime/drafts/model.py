"""A smaller model as the draft: its own graph, its own KV cache, one step per drafted token.

Owns the catch-up: after a round in which all k drafts were accepted, the draft has not seen its own last token, and
feeds two tokens first. It falls out of comparing the rows in its cache with the tokens that were committed.
"""

import numpy as np
from numpy.typing import NDArray

from specruntime.drafts import NOTHING, Proposal, Room, Verdict
from specruntime.engine import Context
from specruntime.errors import InvalidArgument
from specruntime.sampling import Sampler
from specruntime.statistics import EngineTally
from specruntime.windows import Feeder, Rows


class ModelProposer:
    """Proposes the draft model's own continuation.

    Its cache rows are `cache_length` committed tokens followed by `_speculated`: ids it fed while drafting, valid only
    if they turn out to be what was committed.
    """

    def __init__(self, context: Context, *, k: int, stop_below: float | None = None) -> None:
        """`stop_below`: the drafted token that the model gives less probability than this is the last of its round."""
        self.k = k
        self._stop_below = stop_below
        self.cache_length = 0
        self._feeder = Feeder(context)
        self._speculated: list[int] = []
        self._failed = False

    @property
    def tally(self) -> EngineTally:
        return self._feeder.tally

    @tally.setter
    def tally(self, tally: EngineTally) -> None:
        self._feeder.tally = tally

    def propose(self, tokens: NDArray[np.int64], room: Room, sampler: Sampler) -> Proposal:
        # Row len(tokens) + n - 2 is the last one that n drafts write; past its capacity the draft stays silent.
        count = min(room.depth, room.nodes, self.k, self._feeder.capacity - len(tokens) + 1)
        if count < 1:
            return NOTHING
        self._keep_confirmed(tokens)
        self._failed = True  # until every engine call below has returned
        try:
            proposal = self._draft(tokens, count, sampler)
        except InvalidArgument:  # of the sampler; the rows fed so far lie behind those that count
            self._failed = False
            raise
        self._failed = False
        self.cache_length = len(tokens)
        self._speculated = proposal.ids[:-1].tolist()
        return proposal

    def observe(self, verdict: Verdict) -> None: ...

    def rewind(self, length: int) -> None:
        self.cache_length = min(self.cache_length, length)
        self._speculated = []

    def reset(self) -> None:
        self.rewind(0)
        if self._failed:
            self._feeder.context.zero()
            self._failed = False

    def close(self) -> None:
        self._feeder.context.close()

    def _keep_confirmed(self, tokens: NDArray[np.int64]) -> None:
        """Counts speculated rows as committed while they equal the tokens; the last token is always fed anew."""
        for row in self._speculated:
            if self.cache_length >= len(tokens) - 1 or row != tokens[self.cache_length]:
                break
            self.cache_length += 1
        self._speculated = []
        self.cache_length = min(self.cache_length, len(tokens) - 1)

    def _draft(self, tokens: NDArray[np.int64], count: int, sampler: Sampler) -> Proposal:
        """Feeds what was committed since (two tokens after full acceptance), then each draft but the last."""
        ids = np.empty(count, dtype=np.int64)
        laws = self._laws(count, sampler)
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

    def _laws(self, count: int, sampler: Sampler) -> NDArray[np.float32] | None:
        """Room for the laws that drafts are drawn from; None where they are a function of the logits and the seed."""
        if sampler.params.accept == "match" or sampler.params.temperature == 0:
            return None
        return np.empty((count, self._feeder.vocab_size), dtype=np.float32)

    def _choose(
        self, rows: Rows, drafted: NDArray[np.int64], laws: NDArray[np.float32] | None, sampler: Sampler
    ) -> int:
        """The next draft. Under `match` it uses the target's own noise, so it agrees as often as the models do."""
        if sampler.greedy_ids_suffice:
            return int(self._feeder.top_ids(rows)[0])
        logits = self._feeder.logits(rows)[0]
        pending = drafted.tolist()
        if laws is None:
            return sampler.sample(logits, pending)
        laws[len(pending)] = sampler.distribution(logits, pending)
        return sampler.stream(sampler.position + len(pending), "draft").categorical(laws[len(pending)])
