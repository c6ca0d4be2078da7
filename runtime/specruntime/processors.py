"""What changes a row of logits before its law is formed: bias, forbidden ends, penalties. fp32, in a fixed order.

Owns the counts of the tokens of one answer. A row is judged for the committed tokens plus the drafted tokens before it
(`pending`), and only `commit` makes tokens part of the counts. Semantics of the penalties as in vLLM.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specruntime.errors import InvalidArgument
from specruntime.params import SamplingParams, shown

_FP32 = np.finfo(np.float32)


class Processors:
    """The processors of one answer; `vocab` is the real vocabulary size."""

    def __init__(
        self, params: SamplingParams, vocab: int, eos_token_ids: Sequence[int], prompt: Sequence[int]
    ) -> None:
        """Raises `InvalidArgument` when a token id of the options or of the prompt is outside the vocabulary."""
        self._params = params
        self._bias_ids = _ids("logit_bias", list(params.logit_bias), vocab)
        self._bias = np.array(list(params.logit_bias.values()), np.float32)
        ends = (*params.stop_token_ids, *(() if params.ignore_eos else eos_token_ids))
        self._ends = _ids("stop_token_ids and eos_token_ids", ends, vocab)
        self._penalises_output = params.presence_penalty != 0 or params.frequency_penalty != 0
        self._penalises = self._penalises_output or params.repetition_penalty != 1
        self._output_counts = np.zeros(vocab if self._penalises else 0, np.int32)
        self._seen = np.zeros(vocab if self._penalises else 0, np.bool_)  # in the prompt or the output
        prompt_ids = _ids("prompt", prompt, vocab)
        if self._penalises:
            self._seen[prompt_ids] = True

    @property
    def idle(self) -> bool:
        """True when no row of this answer is changed."""
        return not (self._bias_ids.size or self._penalises or (self._params.min_tokens and self._ends.size))

    def commit(self, tokens: Sequence[int]) -> None:
        """Makes the tokens part of the output."""
        if self._penalises:
            _count(self._output_counts, self._seen, tokens)

    def apply(self, row: NDArray[np.float32], position: int, pending: Sequence[int]) -> NDArray[np.float32]:
        """The processed row [vocab] of an output position; `row` itself is left as it is.

        `pending`: the output tokens before the position that are not committed.
        """
        if self.idle:
            return row
        row = row.copy()
        row[self._bias_ids] += self._bias
        if position < self._params.min_tokens:
            row[self._ends] = -np.inf
        if self._penalises:
            self._penalise(row, pending)
        return row

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


def _count(counts: NDArray[np.int32], seen: NDArray[np.bool_], tokens: Sequence[int]) -> None:
    ids = np.asarray(tokens, np.int64)
    np.add.at(counts, ids, 1)
    seen[ids] = True


def _scaled(logits: NDArray[np.float32], penalty: np.float32) -> NDArray[np.float32]:
    """The logits under the repetition penalty; a finite one stays finite."""
    with np.errstate(over="ignore"):
        scaled = np.where(logits > 0, logits / penalty, logits * penalty)
    return np.where(np.isfinite(logits), np.clip(scaled, _FP32.min, _FP32.max), scaled)


def _ids(name: str, tokens: Sequence[int], vocab: int) -> NDArray[np.int64]:
    outside = next((token for token in tokens if not 0 <= token < vocab), None)
    if outside is not None:
        raise InvalidArgument(
            f"{name} holds the token id {shown(outside)}, expected 0 to {vocab - 1}: the vocabulary of the bundle"
        )
    return np.asarray(tokens, np.int64).reshape(-1)
