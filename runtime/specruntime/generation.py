"""One answer: rounds until a stop condition, as a stream of deltas or at once.

Owns the meeting of rounds with stop conditions and text: what is delivered ends exactly where plain decoding would
end, and so does the session. Knows nothing of windows, drafts or files.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from specruntime import clock
from specruntime.errors import InvalidArgument, WrongState
from specruntime.sampling.params import SamplingParams
from specruntime.sampling.sampler import TokenLogprobs
from specruntime.session import Session
from specruntime.statistics import Statistics
from specruntime.stopping import FinishReason, StopChecker
from specruntime.verify import Round


class TextDecoder(Protocol):
    """Turns one answer's tokens into text as they arrive."""

    def push(self, ids: Iterable[int]) -> str:
        """Return the text that became complete with these tokens; may be empty."""
        ...

    def flush(self) -> str:
        """Return what is still held back because its bytes form no character."""
        ...


class Codec(Protocol):
    """Where decoders come from; `specruntime.text.codec.TextCodec` is one."""

    def stream(self, prompt: Sequence[int] = ()) -> TextDecoder:
        """Return a decoder for the answer to these tokens: its text is what the answer adds to theirs."""
        ...


@dataclass(frozen=True, slots=True)
class Delta:
    """What one round delivered. Text trails the tokens while it may still become a stop string or lacks bytes."""

    text: str  # "" without a codec
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None  # one per token when asked for
    finish_reason: FinishReason | None  # set on the last delta only


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer. An end token is the last of `token_ids` and not in `text`; a stop string is in neither text."""

    text: str  # "" without a codec
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None
    finish_reason: FinishReason
    stats: Statistics
    # The seed of the noise: the one of the params, or the one drawn for this answer; a greedy answer draws none.
    seed: int | None


def generate(
    session: Session,
    prompt_ids: Sequence[int] | NDArray[np.integer],
    params: SamplingParams,
    text: Codec | None = None,
) -> Iterator[Delta]:
    """Append the prompt to what the session holds and answers it, one delta per round.

    For the next turn of a conversation pass only its new tokens; after the last delta the session holds prompt and
    answer exactly. Finish reasons: "stop" (an end-of-sequence or stop id, or a stop string), "length"
    (`max_tokens`), "capacity" (the cache is full); at one token the earlier in this list wins.
    Raises what `Session.append`, `begin` and `round` raise, `InvalidArgument` for stop strings without `text`, and
    `WrongState` at the next delta when the session has begun another answer since.
    """
    if params.stop and text is None:
        raise InvalidArgument(
            "`stop` strings need text: pass the bundle's tokenizer, or use `stop_token_ids`"
        )
    start = session.length
    session.append(prompt_ids)
    try:
        session.begin(params)
    except InvalidArgument:
        session.rewind(start)
        raise
    return _deltas(session, Answer(session, params, text))


def complete(
    session: Session,
    prompt_ids: Sequence[int] | NDArray[np.integer],
    params: SamplingParams,
    text: Codec | None = None,
) -> Completion:
    """Return the whole answer that `generate` streams; raises the same."""
    params = params.seeded()
    deltas = list(generate(session, prompt_ids, params, text))
    reason = deltas[-1].finish_reason
    assert reason is not None
    return Completion(
        text="".join(delta.text for delta in deltas),
        token_ids=tuple(token for delta in deltas for token in delta.tokens),
        logprobs=None
        if params.logprobs is None
        else tuple(entry for delta in deltas for entry in delta.logprobs or ()),
        finish_reason=reason,
        stats=session.stats,
        seed=params.seed,
    )


def _deltas(session: Session, answer: "Answer") -> Iterator[Delta]:
    while answer.finish_reason is None:
        answer.require_current()
        yield answer.deliver(session.round())


class Answer:
    """Where an answer stands: its stop conditions, its text, and where in the session it began.

    For callers that drive the rounds themselves: made after `begin`, then fed each round.
    """

    def __init__(self, session: Session, params: SamplingParams, text: Codec | None) -> None:
        self.finish_reason: FinishReason | None = None
        self._session = session
        self._number = session.answers
        self._start = session.length
        self._stops = StopChecker(params, session.manifest.eos_token_ids)
        self._decoder = None if text is None else text.stream(session.tokens.tolist())

    def deliver(self, round: Round) -> Delta:
        """Return the part of a round that belongs to the answer; the session is cut back to its end.

        Raises `WrongState` when the session has begun another answer since.
        """
        self.require_current()
        shown = ""
        kept = 0
        for token in round.tokens:
            verdict = self._stops.feed(token, self._text_of(token))
            shown += verdict.text
            kept += 1
            if verdict.finish_reason is not None:
                self.finish_reason = verdict.finish_reason
                break
        if kept < len(round.tokens):
            self._session.rewind(self._start + self._stops.tokens)
        elif self.finish_reason is None and self._session.length > self._session.capacity:
            verdict = self._stops.finish("" if self._decoder is None else self._decoder.flush())
            shown += verdict.text
            self.finish_reason = verdict.finish_reason
        logprobs = None if round.logprobs is None else round.logprobs[:kept]
        return Delta(shown, round.tokens[:kept], logprobs, self.finish_reason)

    def require_current(self) -> None:
        """Raise `WrongState` when the session has begun another answer since: its rounds are not of this one."""
        if self._number != self._session.answers:
            raise WrongState(
                "the session has begun another answer, expected this one to be the latest: "
                "finish an answer before the next, or use one session for each"
            )

    def _text_of(self, token: int) -> str:
        """Return what the token adds to the text, an end token nothing of its own; the last brings what waited for
        bytes.
        """
        if self._decoder is None:
            return ""
        last = self._stops.is_last(token)
        text = "" if self._stops.is_end(token) else self._decoder.push((token,))
        return text + self._decoder.flush() if last else text


class TimedAnswer:
    """An answer that `generate` streams, timed. Iterate over it once, then read the figures.

    What the consumer does between deltas is not counted. Raises as `generate`.
    """

    def __init__(
        self,
        session: Session,
        prompt_ids: Sequence[int] | NDArray[np.integer],
        params: SamplingParams,
        text: Codec | None = None,
    ) -> None:
        started = clock.now()
        self._session = session
        self._deltas = generate(session, prompt_ids, params, text)
        self.new_tokens = 0
        self.first_seconds = 0.0  # from the prompt's ids to the first delta
        self.seconds = clock.now() - started  # from the prompt's ids to the last delta

    def __iter__(self) -> Iterator[Delta]:
        while True:
            started = clock.now()
            delta = next(self._deltas, None)
            self.seconds += clock.now() - started
            if delta is None:
                return
            if self.new_tokens == 0:
                self.first_seconds = self.seconds
            self.new_tokens += len(delta.tokens)
            yield delta

    @property
    def tokens_per_second(self) -> float:
        """New tokens over the whole answer's time, prefill included."""
        return self.new_tokens / self.seconds if self.seconds else 0.0

    @property
    def decode_tokens_per_second(self) -> float:
        """Tokens after the first over the time after the first; 0 for an answer of one token."""
        after = self.seconds - self.first_seconds
        return (self.new_tokens - 1) / after if self.new_tokens > 1 and after > 0 else 0.0

    @property
    def engine_seconds(self) -> float:
        """Inside engine calls of target and draft."""
        return self._session.stats.target.seconds + self._session.stats.draft.seconds

    @property
    def host_percent(self) -> float:
        """Share of the answer's time outside engine calls: drafting, accepting, sampling, text, bookkeeping."""
        return 100 * (self.seconds - self.engine_seconds) / self.seconds if self.seconds else 0.0

    def as_dict(self) -> dict[str, object]:
        """JSON-ready: these figures, then the session's counters (`Statistics.as_dict`)."""
        return {
            "ttft_ms": 1e3 * self.first_seconds,
            "total_ms": 1e3 * self.seconds,
            "tokens_per_second": self.tokens_per_second,
            "decode_tokens_per_second": self.decode_tokens_per_second,
            "host_percent": self.host_percent,
            **self._session.stats.as_dict(),
        }
