"""What a scheduler has done since it was made: plain numbers, written by its thread and read by any.

Knows nothing of how they are published. A reader may see a turn counted in one number and not yet in the next.
"""

from collections import Counter
from dataclasses import dataclass, field

from specruntime.serving.stepper import Seconds, Turn


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How full a scheduler is at one moment."""

    slots: int  # that work
    active: int
    queued: int
    queue_limit: int
    rows: int  # KV rows in use
    row_limit: int


@dataclass(slots=True)
class Totals:
    """Counters over all requests."""

    ended: Counter[str] = field(default_factory=Counter)  # requests by finish reason, or by the error's name
    refused: Counter[str] = field(default_factory=Counter)  # requests by why they were not taken
    prompt_tokens: int = 0  # of admitted requests
    cached_tokens: int = 0  # of these, whose cache rows were there already
    tokens: int = 0  # delivered
    rounds: int = 0
    drafting_rounds: int = 0  # that judged at least one drafted token
    proposed: int = 0
    accepted: int = 0
    accepted_at: Counter[int] = field(
        default_factory=Counter
    )  # drafting rounds that accepted depth 0, 1, ...
    round_sizes: Counter[int] = field(default_factory=Counter)  # rounds by tokens committed
    seconds: Seconds = field(default_factory=Seconds)
    slot_failures: int = 0

    def count(self, turn: Turn) -> None:
        """Books one turn."""
        for phase in ("prefill", "draft", "verify", "accept", "other"):
            setattr(self.seconds, phase, getattr(self.seconds, phase) + getattr(turn.seconds, phase))
        self.cached_tokens += turn.cached
        if turn.error is not None:
            self.slot_failures += 1
        if turn.round is None or turn.delta is None:
            return
        self.tokens += len(turn.delta.tokens)
        self.rounds += 1
        self.round_sizes[len(turn.round.tokens)] += 1
        self.drafting_rounds += turn.round.proposed > 0
        self.proposed += turn.round.proposed
        self.accepted += turn.round.accepted
        for depth in range(turn.round.accepted):
            self.accepted_at[depth] += 1

    @property
    def acceptance_by_position(self) -> tuple[float, ...]:
        """Share of drafting rounds that accepted the draft at depth 0, 1, ..."""
        depths = range(max(self.accepted_at, default=-1) + 1)
        return tuple(self.accepted_at[depth] / self.drafting_rounds for depth in depths)
