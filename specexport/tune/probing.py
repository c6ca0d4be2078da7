"""Decoding with drafts of every size in turn, so that one pass over the prompts tells acceptance and all times.

Times are medians of rounds as they happen, with the context that the prompts have. Acceptance by rank is what the
session counts. Knows nothing of predictions.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

import numpy as np
from numpy.typing import NDArray

from specruntime.bundle import LoadedBundle
from specruntime.drafts import NOTHING, Draft, Proposal, Room, Verdict
from specruntime.drafts.wrappers import ForwardingDraft
from specruntime.generation import complete
from specruntime.sampling.params import SamplingParams
from specruntime.sampling.sampler import Sampler
from specruntime.statistics import Statistics

Advance = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ProbedRound:
    """One round after the prompt; times in milliseconds."""

    size: int  # drafted tokens that were asked for; 0: none
    proposed: int
    accepted: int
    width: int
    draft_ms: float
    verify_ms: float


@dataclass(frozen=True, slots=True)
class Answered:
    """Token ids of a prompt and its answer, and where the answer begins."""

    ids: tuple[int, ...]
    start: int


class SizedDraft(ForwardingDraft):
    """Another draft, asked for `sizes` in turn, one a round; what happened is kept in `rounds`."""

    def __init__(self, draft: Draft, sizes: Sequence[int]) -> None:
        super().__init__(draft)
        self.rounds: list[ProbedRound] = []
        self._sizes = tuple(sizes)
        self._turn = 0
        self._asked: int | None = None  # None: no round, a chunk of a prompt

    def propose(self, tokens: NDArray[np.int64], room: Room, sampler: Sampler) -> Proposal:
        size = self._sizes[self._turn % len(self._sizes)]
        self._turn += 1
        self._asked = size
        if size == 0:
            return NOTHING
        if size > room.nodes:
            self._asked = None  # the last rounds of an answer or of the cache say nothing of this size
        return super().propose(tokens, Room(min(room.depth, size), min(room.nodes, size)), sampler)

    def observe(self, verdict: Verdict) -> None:
        super().observe(verdict)
        if verdict.proposal is not None and self._asked is not None:
            times = 1e3 * verdict.draft_seconds, 1e3 * verdict.verify_seconds
            proposed, accepted = len(verdict.proposal.ids), len(verdict.path)
            self.rounds.append(ProbedRound(self._asked, proposed, accepted, verdict.width, *times))
        self._asked = None


@dataclass(slots=True)
class Probe:
    """What the rounds of all prompts said together."""

    sizes: tuple[int, ...]
    rounds: list[ProbedRound] = field(default_factory=list)
    rank_trials: dict[tuple[int, int], int] = field(default_factory=lambda: defaultdict(int))
    rank_hits: dict[tuple[int, int], int] = field(default_factory=lambda: defaultdict(int))
    answers: list[Answered] = field(default_factory=list)
    host_ms: list[float] = field(default_factory=list)  # of a round outside drafting and verifying

    def add(self, rounds: Sequence[ProbedRound], stats: Statistics) -> None:
        """One answer. The first round after a prompt is left out: its draft reads the prompt."""
        self.rounds.extend(rounds[1:])
        for table, counted in ((self.rank_trials, stats.rank_trials), (self.rank_hits, stats.rank_hits)):
            for depth, ranks in enumerate(counted):
                for rank, count in enumerate(ranks):
                    table[depth, rank] += count
        if stats.rounds:
            self.host_ms.append(1e3 * stats.accept_seconds / (stats.rounds + stats.prefills))

    @property
    def overhead_ms(self) -> float:
        return median(self.host_ms) if self.host_ms else 0.0

    def acceptance(self) -> list[list[float]]:
        """[depth][rank] share of judged candidates that the target agreed with, as far as any was judged."""
        table: list[list[float]] = []
        for depth, rank in sorted(self.rank_trials):
            while len(table) <= depth:
                table.append([])
            trials = self.rank_trials[depth, rank]
            table[depth].append(self.rank_hits[depth, rank] / trials if trials else 0.0)
        return [ranks for ranks in table if ranks]

    def verify_ms(self) -> dict[int, float]:
        """By window width."""
        times = defaultdict(list)
        for found in self.rounds:
            times[found.width].append(found.verify_ms)
        return {width: median(found) for width, found in sorted(times.items())}

    def draft_ms(self) -> dict[int, float]:
        """By size, of rounds in which something was proposed."""
        times = defaultdict(list)
        for found in self.rounds:
            if found.proposed:
                times[found.size].append(found.draft_ms)
        return {size: median(found) for size, found in sorted(times.items())}

    def proposing(self, size: int) -> float:
        """Share of the rounds asked for `size` that proposed anything."""
        asked = [found.proposed > 0 for found in self.rounds if found.size == size]
        return fmean(asked) if asked else 0.0

    def accepted(self, size: int) -> float:
        """Mean accepted drafts of the rounds that proposed something of `size`."""
        judged = [found.accepted for found in self.rounds if found.size == size and found.proposed]
        return fmean(judged) if judged else 0.0


def turns(sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the order in which sizes are asked for: the largest every other round, as it tells most of acceptance."""
    largest = max(sizes)
    return tuple(asked for size in (0, *(s for s in sizes if s != largest)) for asked in (size, largest))


def probe(
    bundle: LoadedBundle,
    prompts: dict[str, list[int]],
    params: SamplingParams,
    sizes: Sequence[int],
    advance: Advance = lambda step: None,
) -> Probe:
    """Answer every prompt once, asking for each of `sizes` in turn."""
    wrapped: list[SizedDraft] = []

    def wrap(draft: Draft) -> SizedDraft:
        wrapped.append(SizedDraft(draft, turns(sizes)))
        return wrapped[0]

    session = bundle.new_session(dynamic=False, adapt=wrap)
    found = Probe(tuple(sizes))
    try:
        for name, ids in prompts.items():
            advance(f"{bundle.manifest.name}: probing {name}")
            session.reset()
            wrapped[0].rounds.clear()
            answer = complete(session, ids, params)
            found.add(wrapped[0].rounds, session.stats)
            found.answers.append(Answered((*ids, *answer.token_ids), len(ids)))
    finally:
        session.close()
    return found
