"""Where an answer ends and which of its text may be shown already. Fed one token at a time, in order.

Owns end tokens, stop strings and the token limits. Text comes from the caller, so a stop string may span tokens and a
token may hold the end of one. Knows nothing of tokenizers, rounds or sessions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from specruntime.errors import WrongState
from specruntime.sampling.params import SamplingParams

FinishReason = Literal["stop", "length", "capacity"]


@dataclass(frozen=True)
class StopState:
    """What one token did: text that may be shown now, and why the answer ended with it, if it did."""

    text: str
    finish_reason: FinishReason | None


class StopChecker:
    """The end of one answer. The token that ends it is its last; later tokens of the same round are not part of it."""

    def __init__(self, params: SamplingParams, eos_token_ids: Sequence[int]) -> None:
        self._ends = frozenset(params.stop_token_ids) | frozenset(() if params.ignore_eos else eos_token_ids)
        self._stops = params.stop
        self._longest_prefix = max((len(stop) for stop in params.stop), default=1) - 1
        self._min_tokens = params.min_tokens
        self._max_tokens = params.max_tokens
        self._tokens = 0
        self._held = ""  # the end of the text so far that may still become a stop string
        self._finished = False

    @property
    def tokens(self) -> int:
        """How many tokens were fed: the length of the answer once it has ended."""
        return self._tokens

    def is_end(self, token: int) -> bool:
        """Return True when the next token would end the answer by its id: then its text is not asked for."""
        return self._tokens >= self._min_tokens and token in self._ends

    def is_last(self, token: int) -> bool:
        """Return True when the next token ends the answer, by its id or by the limit: no text waits for bytes
        any more.
        """
        return self.is_end(token) or self._tokens + 1 == self._max_tokens

    def feed(self, token: int, text: str) -> StopState:
        """Judge the next token; `text` is what it adds to the text of the answer ("" while bytes are missing).

        Of the last token (`is_last`) that includes what waited for bytes, of an end token it is only that. An end
        token ends the answer, a stop string before the string, the limit after the token. A stop wins over the limit
        at the same token. Raises `WrongState` after the end.
        """
        if self._finished:
            raise WrongState(
                "the answer has ended, expected no further token; make a StopChecker for each answer"
            )
        ends = self.is_end(token)
        self._tokens += 1
        if self._stopped_by(text) or ends:
            return self._end("stop")
        if self._tokens == self._max_tokens:
            return self._end("length")
        return StopState(self._release(), None)

    def finish(self, text: str = "") -> StopState:
        """End the answer because the capacity is reached; `text` is what waited for bytes.

        The text may hold a stop string, which then is the reason.
        """
        return self._end("stop" if self._stopped_by(text) else "capacity")

    def _stopped_by(self, text: str) -> bool:
        """Add the text to what is held; where a stop string ends in it, cuts from there on."""
        held, self._held = len(self._held), self._held + text
        start = self._stop_start(held) if self._tokens > self._min_tokens else None
        self._held = self._held[:start]
        return start is not None

    def _end(self, reason: FinishReason) -> StopState:
        self._finished = True
        shown, self._held = self._held, ""
        return StopState(shown, reason)

    def _stop_start(self, old: int) -> int | None:
        """Where the stop string begins that ends first after `old` characters; of several the longest."""
        text = self._held
        found = ((text.find(stop, max(0, old - len(stop) + 1)), len(stop)) for stop in self._stops)
        ends = [(start + length, start) for start, length in found if start >= 0]
        return min(ends)[1] if ends else None

    def _release(self) -> str:
        """Text that no stop string can begin in any more; the rest stays held."""
        text = self._held
        for size in range(min(self._longest_prefix, len(text)), 0, -1):
            if any(len(stop) > size and stop.startswith(text[-size:]) for stop in self._stops):
                break
        else:
            size = 0
        self._held = text[len(text) - size :]
        return text[: len(text) - size]
