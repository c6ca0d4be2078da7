"""What a request hears of its answer: deliveries, the last of which has a finish reason, or one failure.

Owns the figures of one request and who wrote each token. Events are values: they may cross threads.
"""

from dataclasses import dataclass
from typing import Literal

from specruntime.errors import SpecError
from specruntime.generation import Delta
from specruntime.verify import Round

Author = Literal["accepted", "correction", "bonus", "target", "forced"]


def authors_of(round: Round, delivered: int) -> tuple[Author, ...]:
    """Who wrote each of the first `delivered` tokens of a round.

    `accepted`: drafted and agreed with. The token after them is the target's own: a `correction` of refused drafts, a
    `bonus` after a chain or a tree's path that was accepted to its end, `target` where nothing was drafted. In a
    constrained answer `forced` ones may follow, which were not computed because nothing else could follow.
    """
    own: Author = "target" if not round.proposed else "correction" if round.corrected else "bonus"
    written: list[Author] = ["accepted"] * round.accepted
    forced: list[Author] = ["forced"] * round.forced
    return (*written, own, *forced)[:delivered]


@dataclass(slots=True)
class Figures:
    """One request in numbers; seconds on `clock.now`. Final with the last event."""

    prompt_tokens: int
    # The seed of the noise: the one of the request, or the one drawn for it; a greedy answer draws none.
    seed: int | None = None
    cached_tokens: int = 0  # of these, whose cache rows were there already
    tokens: int = 0  # delivered
    first_tokens: int = 0  # of these, with the first delivery
    rounds: int = 0  # that delivered
    proposed: int = 0
    accepted: int = 0
    queued_seconds: float = 0.0  # from submission to a slot
    first_seconds: float = 0.0  # from submission to the first delivery
    seconds: float = 0.0  # from submission to the last delivery

    @property
    def decode_tokens_per_second(self) -> float:
        """Tokens after the first delivery over the time after it; 0 for an answer of one delivery."""
        after = self.seconds - self.first_seconds
        return (self.tokens - self.first_tokens) / after if self.rounds > 1 and after > 0 else 0.0

    def as_dict(self) -> dict[str, float]:
        """JSON-ready."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "tokens": self.tokens,
            "rounds": self.rounds,
            "proposed": self.proposed,
            "accepted": self.accepted,
            "tokens_per_round": self.tokens / self.rounds if self.rounds else 0.0,
            "queued_ms": 1e3 * self.queued_seconds,
            "first_ms": 1e3 * self.first_seconds,
            "total_ms": 1e3 * self.seconds,
            "decode_tokens_per_second": self.decode_tokens_per_second,
        }


@dataclass(frozen=True, slots=True)
class Delivery:
    """What one round added to the answer."""

    delta: Delta
    authors: tuple[Author, ...]  # one per token
    figures: Figures  # of the request up to here

    @property
    def last(self) -> bool:
        return self.delta.finish_reason is not None


@dataclass(frozen=True, slots=True)
class Failure:
    """The answer ends here, unfinished. No event follows."""

    error: Exception
    figures: Figures

    @property
    def last(self) -> bool:
        return True


Event = Delivery | Failure


class QueueFull(SpecError):
    """The request queue is full; try again later."""


class Draining(SpecError):
    """The scheduler takes no new requests: it is being shut down, or has no slot that works."""


class DeadlinePassed(SpecError, TimeoutError):
    """The request's time was over before its answer ended."""


class Cancelled(SpecError):
    """The client cancelled the request."""
