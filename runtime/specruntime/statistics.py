"""What one answer cost: counters and seconds of the rounds since `Session.begin`.

Owns numbers only. `tokens - discarded` is what was delivered; `acceptance_length` is measured, never a formula.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

Trial = tuple[int, int | None, bool]  # depth, rank where it is known, accepted


@dataclass(slots=True)
class EngineCounters:
    """Engine calls of one context: seconds spent inside them and their number by profile name.

    `replays` counts the calls that replayed a captured CUDA graph; a backend without such graphs has none.
    """

    seconds: float = 0.0
    calls: dict[str, int] = field(default_factory=dict)
    replays: dict[str, int] = field(default_factory=dict)

    def add(self, profile: str, seconds: float, *, replayed: bool = False) -> None:
        self.seconds += seconds
        self.calls[profile] = self.calls.get(profile, 0) + 1
        if replayed:
            self.replays[profile] = self.replays.get(profile, 0) + 1


@dataclass(slots=True)
class Statistics:
    """Counters of one answer. All seconds are wall time on the host clock.

    A *prefill* is a round that first fed more than one token (the prompt); it yields one token and drafts nothing.
    `rounds` counts the others, so `tokens == prefills + rounds + accepted + forced`.
    """

    prefills: int = 0
    rounds: int = 0
    tokens: int = 0  # emitted by rounds
    discarded: int = 0  # emitted, then cut off by `rewind` (a stop inside an accepted run)
    proposed: int = 0  # drafted tokens put into a window
    evaluated: int = 0  # ... of which the target judged: the children of row 0 and of each accepted draft
    accepted: int = 0  # ... of which the target agreed with
    forced: int = 0  # committed without the target: in a constrained answer nothing else could follow
    accepted_at: list[int] = field(default_factory=list)  # rounds that accepted a draft at this depth
    rank_trials: list[list[int]] = field(default_factory=list)  # drafts judged, by depth and rank
    rank_hits: list[list[int]] = field(default_factory=list)  # ... of which the target agreed with
    prefill_seconds: float = 0.0  # whole prefill rounds
    draft_seconds: float = 0.0  # in the draft, its engine calls included
    verify_seconds: float = 0.0  # feeding the target's windows, engine calls included
    accept_seconds: float = 0.0  # sampling and the accept rule
    round_seconds: float = 0.0  # whole rounds, prefills included
    target: EngineCounters = field(default_factory=EngineCounters)
    draft: EngineCounters = field(default_factory=EngineCounters)

    @property
    def host_seconds(self) -> float:
        """Everything outside engine calls."""
        return self.round_seconds - self.target.seconds - self.draft.seconds

    @property
    def acceptance_length(self) -> float:
        """Tokens per round that could have drafted, 1 when nothing was accepted; 0 before the first such round."""
        return 1 + self.accepted / self.rounds if self.rounds else 0.0

    @property
    def acceptance_by_position(self) -> tuple[float, ...]:
        """Share of rounds that accepted the draft at depth 0, 1, ...; their sum is `acceptance_length - 1`."""
        return tuple(count / self.rounds for count in self.accepted_at)

    def count_round(
        self, *, prefill: bool, proposed: int, accepted: int, trials: Iterable[Trial], forced: int = 0
    ) -> None:
        """Book one committed round of `accepted + 1 + forced` tokens and what became of each draft that was judged."""
        if prefill:
            self.prefills += 1
        else:
            self.rounds += 1
        self.tokens += accepted + 1 + forced
        self.forced += forced
        self.proposed += proposed
        self.accepted += accepted
        for depth, rank, hit in trials:
            self.evaluated += 1
            if rank is not None:
                _count(self.rank_trials, depth, rank, 1)
                _count(self.rank_hits, depth, rank, int(hit))
        self.accepted_at.extend([0] * (accepted - len(self.accepted_at)))
        for depth in range(accepted):
            self.accepted_at[depth] += 1

    def count_seconds(
        self, *, draft: float, verify: float, accept: float, whole: float, prefill: bool
    ) -> None:
        """Book the phases of one round."""
        self.draft_seconds += draft
        self.verify_seconds += verify
        self.accept_seconds += accept
        self.round_seconds += whole
        if prefill:
            self.prefill_seconds += whole

    def as_dict(self) -> dict[str, object]:
        """JSON-ready: counters, milliseconds by phase, engine calls by profile."""
        return {
            "prefills": self.prefills,
            "rounds": self.rounds,
            "new_tokens": self.tokens - self.discarded,
            "discarded": self.discarded,
            "proposed": self.proposed,
            "evaluated": self.evaluated,
            "accepted": self.accepted,
            "forced": self.forced,
            "acceptance_length": self.acceptance_length,
            "acceptance_by_position": list(self.acceptance_by_position),
            "rank_trials": [list(ranks) for ranks in self.rank_trials],
            "rank_hits": [list(ranks) for ranks in self.rank_hits],
            "prefill_ms": 1e3 * self.prefill_seconds,
            "draft_ms": 1e3 * self.draft_seconds,
            "verify_ms": 1e3 * self.verify_seconds,
            "accept_ms": 1e3 * self.accept_seconds,
            "host_ms": 1e3 * self.host_seconds,
            "round_ms": 1e3 * self.round_seconds,
            "target_engine_ms": 1e3 * self.target.seconds,
            "draft_engine_ms": 1e3 * self.draft.seconds,
            "target_calls": dict(self.target.calls),
            "draft_calls": dict(self.draft.calls),
            "graph_replays": {"target": dict(self.target.replays), "draft": dict(self.draft.replays)},
        }


def _count(table: list[list[int]], depth: int, rank: int, amount: int) -> None:
    """Add to table[depth][rank], which grows as far as needed."""
    while len(table) <= depth:
        table.append([])
    row = table[depth]
    row.extend([0] * (rank + 1 - len(row)))
    row[rank] += amount
