"""From a row of processed logits to the tokens that may be drawn: temperature, top-k, top-p, min-p. fp32.

The kept set is exactly that of the textbook rule over the row sorted by (logit descending, id ascending); the row is
never sorted as a whole, because a set is fixed by its lowest logit and how many of the tokens tied there it keeps.
Knows nothing of noise, drafts or the answer so far.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specruntime.errors import EngineFailed, InvalidArgument
from specruntime.params import SamplingParams

# Below the row's maximum, in nats; each widens the part of the row that top-p sorts until it holds the nucleus.
_NUCLEUS_DEPTHS = (4.0, 8.0, 16.0, np.inf)


@dataclass(frozen=True)
class Candidates:
    """The tokens that may be drawn; their law is softmax(logits). The best token is always among them."""

    ids: NDArray[np.int64]  # [n] ascending
    logits: NDArray[np.float32]  # [n] after temperature, the highest is 0


def best(row: NDArray[np.float32]) -> int:
    """argmax of a row [vocab]; the lowest id wins a tie. Raises as `candidates` does."""
    token = int(np.argmax(row))
    _check_peak(row[token])
    return token


def candidates(row: NDArray[np.float32], params: SamplingParams) -> Candidates:
    """The candidates of a processed row [vocab] at params.temperature > 0.

    Raises `EngineFailed` for a row with NaN or +inf and `InvalidArgument` when every token is banned.
    """
    peak = np.max(row)
    _check_peak(peak)
    logits = row - peak
    logits /= np.float32(params.temperature)
    ids: NDArray[np.int64] | None = None  # None: all
    if 0 < params.top_k < logits.size:
        ids = _top_k(logits, params.top_k)
        logits = logits[ids]
    if params.top_p < 1:
        ids, logits = _narrow(ids, logits, _top_p(logits, params.top_p))
    lowest = np.log(params.min_p) if params.min_p > 0 else np.finfo(np.float32).min
    ids, logits = _narrow(
        ids, logits, np.flatnonzero(logits >= np.float32(lowest))
    )  # drops banned tokens too
    return Candidates(ids, logits)


def probabilities(kept: Candidates, vocab: int) -> NDArray[np.float32]:
    """[vocab] the law of the candidates; zero for every other token."""
    weights = np.exp(kept.logits)
    dense = np.zeros(vocab, np.float32)
    dense[kept.ids] = weights / weights.sum()
    return dense


def _narrow(
    ids: NDArray[np.int64] | None, logits: NDArray[np.float32], kept: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    return (kept if ids is None else ids[kept]), logits[kept]


def _top_k(logits: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    lowest = np.partition(logits, logits.size - count)[logits.size - count]
    return _first(logits, lowest, count)


def _top_p(logits: NDArray[np.float32], top_p: float) -> NDArray[np.int64]:
    """The fewest best tokens that hold at least `top_p` of the probability."""
    needed = np.sum(np.exp(logits), dtype=np.float64) * top_p
    for depth in _NUCLEUS_DEPTHS:
        # Everything at least this good: a prefix of the sorted row, so its running sums are those of the whole row.
        ordered = -np.sort(-logits[logits >= -np.float32(depth)])
        mass = np.cumsum(np.exp(ordered), dtype=np.float64)
        if mass[-1] >= needed:
            break
    count = min(int(np.searchsorted(mass, needed, side="left")) + 1, ordered.size)
    return _first(logits, ordered[count - 1], count)


def _first(logits: NDArray[np.float32], lowest: np.float32, count: int) -> NDArray[np.int64]:
    """Ascending places of the `count` best, of which `lowest` is the last; the lowest ids of those tied there."""
    kept = np.flatnonzero(logits >= lowest)
    surplus = kept.size - count
    if surplus == 0:
        return kept
    tied = np.flatnonzero(logits[kept] == lowest)
    return np.delete(kept, tied[tied.size - surplus :])


def _check_peak(peak: np.float32) -> None:
    if np.isneginf(peak):
        raise InvalidArgument("every token is banned by logit_bias or min_tokens, expected at least one left")
    if not np.isfinite(peak):
        raise EngineFailed(
            f"the logits hold {peak}, expected finite numbers; the engine's output is not usable"
        )
