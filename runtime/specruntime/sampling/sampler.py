"""Chooses the tokens of one answer: one distribution for plain decoding, drafting and verification.

Owns the order processors -> candidates -> draw and the output position that keys the noise. Knows nothing of windows or
drafts: a row of logits is judged for the committed tokens plus the `pending` ones the caller names.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specruntime.errors import DeadEnd, InvalidArgument
from specruntime.sampling.constraint import Constraint, Mask
from specruntime.sampling.filters import Warper, best, probabilities, top_places
from specruntime.sampling.noise import NoiseStream, gumbel_argmax
from specruntime.sampling.params import LogitsProcessor, SamplingParams, shown
from specruntime.sampling.reasoning import ReasoningState

_FP32 = np.finfo(np.float32)


class Processors:
    """The processors of one answer; `vocab` is the real vocabulary size."""

    def __init__(
        self, params: SamplingParams, vocab: int, eos_token_ids: Sequence[int], prompt: Sequence[int]
    ) -> None:
        """Raise `InvalidArgument` when a token id of the options or of the prompt is outside the vocabulary."""
        self._params = params
        self._vocab = vocab
        self._bias_ids = _ids("logit_bias", list(params.logit_bias), vocab)
        self._bias = np.array(list(params.logit_bias.values()), np.float32)
        ends = (*params.stop_token_ids, *(() if params.ignore_eos else eos_token_ids))
        self._ends = _ids("stop_token_ids and eos_token_ids", ends, vocab)
        self._output: list[int] = []  # of the answer so far, where processors are shown it
        self._penalises_output = params.presence_penalty != 0 or params.frequency_penalty != 0
        self._penalises = self._penalises_output or params.repetition_penalty != 1
        self._output_counts = np.zeros(vocab if self._penalises else 0, np.int32)
        self._seen = np.zeros(vocab if self._penalises else 0, np.bool_)  # in the prompt or the output
        self._reasoning = _reasoning_state(params, vocab)
        prompt_ids = _ids("prompt", prompt, vocab)
        if self._penalises:
            self._seen[prompt_ids] = True

    @property
    def idle(self) -> bool:
        """True when no row of this answer is changed."""
        bans_ends = self._params.min_tokens and self._ends.size
        budgeted = self._reasoning is not None and self._reasoning.bounded
        changed = self._bias_ids.size or self._penalises or bans_ends or self._params.logits_processors
        return not (changed or budgeted)

    def bans(self, token: int, position: int) -> bool:
        """Whether a bias or `min_tokens` rules the token out at an output position."""
        ended_early = position < self._params.min_tokens and token in self._ends
        return ended_early or self._params.logit_bias.get(token) == -np.inf

    def commit(self, tokens: Sequence[int]) -> None:
        """Make the tokens part of the output."""
        if self._params.logits_processors:
            self._output += tokens
        if self._penalises:
            _count(self._output_counts, self._seen, tokens)
        if self._reasoning is not None:
            self._reasoning.feed(tokens)

    def apply(self, row: NDArray[np.float32], position: int, pending: Sequence[int]) -> NDArray[np.float32]:
        """Return the processed row [vocab] of an output position; `row` itself is left as it is.

        `pending`: the output tokens before the position that are not committed.
        """
        if self.idle:
            return row
        if (forced := self._forced(pending)) is not None:
            row = np.full_like(row, -np.inf)
            row[forced] = 0
            return row
        row = row.copy()
        for process in self._params.logits_processors:
            row = self._processed(process, [*self._output, *pending], row)
        row[self._bias_ids] += self._bias
        if position < self._params.min_tokens:
            row[self._ends] = -np.inf
        if self._penalises:
            self._penalise(row, pending)
        return row

    def _processed(
        self, process: LogitsProcessor, ids: list[int], row: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Return what a custom processor makes of the row; whatever it raises ends this answer alone."""
        try:
            found: object = process(ids, row)
        except Exception as error:
            raise InvalidArgument(f"a logits processor failed: {type(error).__name__}: {error}") from error
        row = np.asarray(found)
        if row.shape != (self._vocab,) or row.dtype.kind != "f":
            raise InvalidArgument(
                f"a logits processor returned {shown(found)}, expected the logits of {self._vocab} tokens"
            )
        return row.astype(np.float32) if row.dtype != np.float32 or not row.flags.writeable else row

    def _forced(self, pending: Sequence[int]) -> int | None:
        """Return the only token that the budget of the reasoning allows here, if it does."""
        state = self._reasoning
        if state is None or not state.bounded:
            return None
        return (state.after(pending) if pending else state).forced

    def _penalise(self, row: NDArray[np.float32], pending: Sequence[int]) -> None:
        counts, seen = self._output_counts, self._seen
        if pending:
            counts, seen = counts.copy(), seen.copy()
            _count(counts, seen, pending)
        if self._params.repetition_penalty != 1:
            penalty = np.float32(self._params.repetition_penalty)
            ids = np.flatnonzero(seen)
            logits = row[ids]
            row[ids] = _scaled(logits, penalty)
        if self._penalises_output:
            ids = np.flatnonzero(counts)
            row[ids] -= np.float32(self._params.presence_penalty)
            row[ids] -= np.float32(self._params.frequency_penalty) * counts[ids].astype(np.float32)


def _reasoning_state(params: SamplingParams, vocab: int) -> ReasoningState | None:
    """Return where the answer is in its reasoning, for a budget; None without one: then nothing depends on it."""
    if params.reasoning is not None:
        _ids("the end mark of the reasoning", params.reasoning.end_ids, vocab)
    if params.thinking_token_budget is None:
        return None
    if params.structured_outputs is not None:
        raise InvalidArgument(
            "thinking_token_budget and structured_outputs are both given, and a form holds from the first token on: "
            "leave one of them out"
        )
    if params.reasoning is None:
        raise InvalidArgument(
            "thinking_token_budget needs the marks of the reasoning, and none are known: leave it out, ask through "
            "a chat of a bundle whose chat template has them, or give `reasoning`"
        )
    return ReasoningState(params.reasoning, params.thinking_token_budget)


def _count(counts: NDArray[np.int32], seen: NDArray[np.bool_], tokens: Sequence[int]) -> None:
    ids = np.asarray(tokens, np.int64)
    np.add.at(counts, ids, 1)
    seen[ids] = True


def _scaled(logits: NDArray[np.float32], penalty: np.float32) -> NDArray[np.float32]:
    """Return the logits under the repetition penalty; a finite one stays finite."""
    with np.errstate(over="ignore"):
        scaled = np.where(logits > 0, logits / penalty, logits * penalty)
    return np.where(np.isfinite(logits), np.clip(scaled, _FP32.min, _FP32.max), scaled)


def _ids(name: str, tokens: Sequence[int], vocab: int) -> NDArray[np.int64]:
    outside = next((token for token in tokens if not 0 <= token < vocab), None)
    if outside is not None:
        raise InvalidArgument(
            f"{name}: token id {shown(outside)} is outside the bundle's vocabulary, expected 0 to {vocab - 1}"
        )
    return np.asarray(tokens, np.int64).reshape(-1)


__all__ = ["Sampler", "SamplingParams", "TokenLogprobs", "token_logprobs"]


class Sampler:
    """The choice of tokens for one answer. Rows are [vocab_size] or longer; what lies beyond is padding, never chosen.

    Nothing but `commit` changes it, so a row may be judged any number of times.
    """

    def __init__(
        self,
        params: SamplingParams,
        vocab_size: int,
        eos_token_ids: Sequence[int],
        prompt: Sequence[int],
        constraint: Constraint | None = None,
    ) -> None:
        """Take over `constraint`, that of the params. Raises `InvalidArgument` when a token id or `logprobs` does not
        fit the vocabulary, and for `n` above 1.
        """
        if params.n != 1:
            raise InvalidArgument(
                f"n is {params.n}, expected 1: a session gives one answer at a time; ask `LLM`, or repeat the prompt"
            )
        if params.logprobs is not None and params.logprobs > vocab_size:
            raise InvalidArgument(
                f"logprobs is {shown(params.logprobs)}, expected at most the vocabulary, {vocab_size}"
            )
        self.params = params
        self.constraint = constraint
        self.seed = params.seeded().seed or 0
        self._vocab = vocab_size
        self._processors = Processors(params, vocab_size, eos_token_ids, prompt)
        self._warper = Warper(params, vocab_size)
        self._position = 0

    @property
    def position(self) -> int:
        """How many tokens of the answer are committed: the output position of the next one."""
        return self._position

    @property
    def greedy_ids_suffice(self) -> bool:
        """True when the argmax of the raw logits is the answer and nothing else of them is asked for."""
        return self._takes_best and self.constraint is None and self.params.logprobs is None

    @property
    def _takes_best(self) -> bool:
        """Whether the token is the best of those allowed, by the raw logits."""
        return self.params.temperature == 0 and self._processors.idle

    def settles(self, best_id: int, pending: Sequence[int] = ()) -> bool:
        """Whether a constrained answer takes the argmax of the raw logits, which is known without them. Raises as
        `sample`.
        """
        return self._takes_best and (mask := self._mask(pending)) is not None and best_id in mask

    def certain(self, pending: Sequence[int], limit: int) -> list[int]:
        """At most `limit` tokens that must follow `pending`, whatever the logits: each is the only one allowed.

        Empty where logits processors or log-probabilities need the logits all the same.
        """
        found: list[int] = []
        if self.constraint is None or self.params.logits_processors or self.params.logprobs is not None:
            return found
        while len(found) < limit and not self.constraint.ended(path := [*pending, *found]):
            only = self.constraint.peek(path).only
            if only is None or self._processors.bans(only, self._position + len(path)):
                break
            found.append(only)
        return found

    def ended(self, pending: Sequence[int]) -> bool:
        """Whether a constrained answer ends with `pending`, so that nothing needs to be drafted after it."""
        return self.constraint is not None and self.constraint.ended(pending)

    def allows(self, ids: NDArray[np.int64], pending: Sequence[int]) -> NDArray[np.bool_] | None:
        """[...] which of some ids [...] the constraint lets follow `pending`; None without one: all."""
        return None if self.constraint is None else self.constraint.peek(pending).of(ids)

    def sample(self, logits_row: NDArray[np.float32], pending: Sequence[int] = ()) -> int:
        """Return the token after prompt + committed + pending, under the match rule.

        A function of (seed, output position, the distribution) alone: drafting and verifying with it at the same
        position use the same noise, which makes a good draft agree often (Gumbel coupling). Raises as `distribution`
        does.
        """
        position = self._position + len(pending)
        row = self._row(logits_row, pending)
        if self.params.temperature == 0:
            return best(row)
        kept = self._warper.candidates(row)
        return int(kept.ids[gumbel_argmax(kept.logits, self.seed, position, kept.ids)])

    def distribution(
        self, logits_row: NDArray[np.float32], pending: Sequence[int] = ()
    ) -> NDArray[np.float32]:
        """[vocab_size] the distribution of the token after prompt + committed + pending; one-hot at temperature 0.

        Raises `EngineFailed` for a row with NaN or +inf, `InvalidArgument` for a short row, `DeadEnd` when every
        token is banned.
        """
        row = self._row(logits_row, pending)
        if self.params.temperature > 0:
            return probabilities(self._warper.candidates(row), self._vocab)
        distribution = np.zeros(self._vocab, np.float32)
        distribution[best(row)] = 1
        return distribution

    def stream(self, position: int, purpose: str) -> NoiseStream:
        """Return the uniform numbers for one purpose ("draft", "accept") at an output position, always from the
        first.
        """
        return NoiseStream(self.seed, position, purpose)

    def commit(self, tokens: Sequence[int]) -> None:
        """Make the tokens part of the answer."""
        self._processors.commit(tokens)
        if self.constraint is not None:
            self.constraint.commit(tokens)
        self._position += len(tokens)

    def _row(self, logits_row: NDArray[np.float32], pending: Sequence[int]) -> NDArray[np.float32]:
        """Return the row [vocab] as the options of the answer make it, its constraint last."""
        mask = self._mask(pending)
        row = self._processors.apply(self._real(logits_row), self._position + len(pending), pending)
        return row if mask is None else mask.masked(row)

    def _mask(self, pending: Sequence[int]) -> Mask | None:
        """Return what may follow; None: everything. Raises `DeadEnd` where nothing may."""
        if self.constraint is None:
            return None
        mask = self.constraint.mask(pending)
        if not mask.count:
            raise DeadEnd(
                "nothing can follow in the form of the answer: it has ended, or it allows no further token"
            )
        return mask

    def _real(self, logits_row: NDArray[np.float32]) -> NDArray[np.float32]:
        if logits_row.ndim != 1 or logits_row.size < self._vocab:
            raise InvalidArgument(
                f"the logits row has shape {logits_row.shape}, expected [{self._vocab}] or longer"
            )
        return logits_row[: self._vocab]


@dataclass(frozen=True)
class TokenLogprobs:
    """Log-probabilities, in nats, under the raw logits: before penalties, temperature and truncation."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]  # (id, logprob), best first, the lowest id first among equals


def token_logprobs(logits_row: NDArray[np.float32], token: int, top: int, vocab_size: int) -> TokenLogprobs:
    """Return the log-probability of `token` and of the `top` most likely tokens; log-softmax of the row's real part."""
    row = logits_row[:vocab_size]
    peak = np.max(row)
    normaliser = float(peak) + float(np.log(np.sum(np.exp(row - peak), dtype=np.float64)))
    ids = top_places(row, top)
    ids = ids[np.argsort(-row[ids], stable=True)]
    best_tokens = tuple((int(i), float(row[i]) - normaliser) for i in ids)
    return TokenLogprobs(token, float(row[token]) - normaliser, best_tokens)
