"""What one answer cost: counters and seconds of the rounds since `Session.begin`.

Owns numbers only. `tokens - discarded` is what was delivered; `acceptance_length` is measured, never a formula.
"""

from dataclasses import dataclass, field


@dataclass(slots=True)
class EngineTally:
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
    `rounds` counts the others, so `tokens == prefills + rounds + accepted`.
    """

    prefills: int = 0
    rounds: int = 0
    tokens: int = 0  # emitted by rounds
    discarded: int = 0  # emitted, then cut off by `rewind` (a stop inside an accepted run)
    proposed: int = 0  # drafted tokens put into a window
    evaluated: int = 0  # ... of which the target judged: up to and including the first refused one
    accepted: int = 0  # ... of which the target agreed with
    accepted_at: list[int] = field(default_factory=list)  # rounds that accepted the draft at this depth
    prefill_seconds: float = 0.0  # whole prefill rounds
    draft_seconds: float = 0.0  # in the draft, its engine calls included
    verify_seconds: float = 0.0  # feeding the target's windows, engine calls included
    accept_seconds: float = 0.0  # sampling and the accept rule
    round_seconds: float = 0.0  # whole rounds, prefills included
    target: EngineTally = field(default_factory=EngineTally)
    draft: EngineTally = field(default_factory=EngineTally)

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

    def count_round(self, *, prefill: bool, proposed: int, accepted: int) -> None:
        """Books one committed round of `accepted + 1` tokens."""
        if prefill:
            self.prefills += 1
        else:
            self.rounds += 1
        self.tokens += accepted + 1
        self.proposed += proposed
        self.evaluated += min(accepted + 1, proposed)
        self.accepted += accepted
        self.accepted_at.extend([0] * (accepted - len(self.accepted_at)))
        for depth in range(accepted):
            self.accepted_at[depth] += 1

    def count_seconds(
        self, started: float, drafted: float, verified: float, accepted: float, ended: float, *, prefill: bool
    ) -> None:
        """Books the phases of one round from the clock readings between them."""
        self.draft_seconds += drafted - started
        self.verify_seconds += verified - drafted
        self.accept_seconds += accepted - verified
        self.round_seconds += ended - started
        if prefill:
            self.prefill_seconds += ended - started

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
            "acceptance_length": self.acceptance_length,
            "acceptance_by_position": list(self.acceptance_by_position),
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
