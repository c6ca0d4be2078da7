"""From a row of processed logits to the tokens that may be drawn: temperature, top-k, top-p, min-p. fp32.

The kept set is exactly that of the textbook rule over the row sorted by (logit descending, id ascending); the row is
never sorted as a whole, because a set is fixed by its lowest logit and how many of the tokens tied there it keeps.
Knows nothing of noise, drafts or the answer so far.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specruntime.errors import DeadEnd, EngineFailed
from specruntime.sampling.params import SamplingParams

_SLICES_PER_NAT = 16
_SLICES = 640  # the last holds everything 40 nats or more below the best token
_ROUNDER = float(
    2 ** (52 - 34)
)  # adding it to a number below 1 leaves multiples of 2**-34; taking it off is exact
_DEPTHS = (4.0, 8.0, 16.0)  # nats below the best token, tried in turn before the whole row is partitioned


@dataclass(frozen=True)
class Candidates:
    """The tokens that may be drawn; their distribution is softmax(logits). The best token is always among them."""

    ids: NDArray[np.int64]  # [n] ascending
    logits: NDArray[np.float32]  # [n] after temperature, the highest is 0


def best(row: NDArray[np.float32]) -> int:
    """argmax of a row [vocab]; the lowest id wins a tie. Raises as `Warper.candidates` does."""
    token = int(np.argmax(row))
    _check_peak(row[token])
    return token


class Warper:
    """Temperature and truncation of one answer. Owns the scratch memory of a row, so it is not thread-safe."""

    def __init__(self, params: SamplingParams, vocab: int) -> None:
        self._params = params
        self._logits = np.empty(vocab, np.float32)
        self._mass = np.empty(vocab, np.float64)
        self._slices = np.empty(vocab, np.intp)

    def candidates(self, row: NDArray[np.float32]) -> Candidates:
        """Return the candidates of a processed row [vocab] at temperature > 0.

        Raises `EngineFailed` for a row with NaN or +inf and `DeadEnd` when every token is banned.
        """
        peak = np.max(row)
        _check_peak(peak)
        with np.errstate(over="ignore"):  # too far below the best for fp32 is as good as banned
            logits = np.subtract(row, peak, out=self._logits)
            logits /= np.float32(self._params.temperature)
        ids: NDArray[np.int64] | None = None  # None: all
        if 0 < self._params.top_k < logits.size:
            ids = top_places(logits, self._params.top_k)
            logits = logits[ids]
        if self._params.top_p < 1:
            ids, logits = _narrow(ids, logits, self._nucleus(logits))
        lowest = np.log(self._params.min_p) if self._params.min_p > 0 else np.finfo(np.float32).min
        ids, logits = _narrow(
            ids, logits, np.flatnonzero(logits >= np.float32(lowest))
        )  # drops banned tokens too
        return Candidates(ids, logits)

    def _nucleus(self, logits: NDArray[np.float32]) -> NDArray[np.int64]:
        """Ascending places of the fewest best tokens that hold at least top_p of the probability.

        Sums by slices of the logits and sorts only the slice in which the nucleus ends. Probabilities are rounded to
        multiples of 2**-34, so that sums of up to 2**18 of them are exact in float64 and the order of adding does not
        matter: the same tokens are kept as by sorting all.
        """
        mass, slices = self._mass[: logits.size], self._slices[: logits.size]
        np.exp(logits, out=mass, dtype=np.float32, casting="same_kind")
        mass += _ROUNDER
        mass -= _ROUNDER
        needed = mass.sum() * self._params.top_p
        depth = logits * np.float32(-_SLICES_PER_NAT)
        np.copyto(slices, np.minimum(depth, np.float32(_SLICES - 1), out=depth), casting="unsafe")
        reached = np.cumsum(np.bincount(slices, weights=mass, minlength=_SLICES))
        last = int(np.searchsorted(reached, needed, side="left"))
        kept = slices < last
        inside = np.flatnonzero(slices == last)
        inside = inside[np.argsort(-logits[inside], stable=True)]
        before = reached[last - 1] if last else 0.0
        end = int(np.searchsorted(before + np.cumsum(mass[inside]), needed, side="left"))
        kept[inside[: end + 1]] = True
        return np.flatnonzero(kept)


def probabilities(kept: Candidates, vocab: int) -> NDArray[np.float32]:
    """[vocab] the distribution of the candidates; zero for every other token."""
    weights = np.exp(kept.logits)
    dense = np.zeros(vocab, np.float32)
    dense[kept.ids] = weights / weights.sum()
    return dense


def _narrow(
    ids: NDArray[np.int64] | None, logits: NDArray[np.float32], kept: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    return (kept if ids is None else ids[kept]), logits[kept]


def top_places(row: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    """Ascending places of the `count` (0 to the row's size) highest of a row without NaN; ties to the lowest place."""
    if count == 0:
        return np.empty(0, np.int64)
    part = row
    for depth in _DEPTHS:
        near = row[row >= np.max(row) - np.float32(depth)]
        if near.size >= count:
            part = near
            break
    return _first(row, np.partition(part, part.size - count)[part.size - count], count)


def _first(logits: NDArray[np.float32], lowest: np.float32, count: int) -> NDArray[np.int64]:
    """Ascending places of the `count` best, of which `lowest` is the last; the first places of those tied there."""
    kept = np.flatnonzero(logits >= lowest)
    surplus = kept.size - count
    if surplus == 0:
        return kept
    tied = np.flatnonzero(logits[kept] == lowest)
    return np.delete(kept, tied[tied.size - surplus :])


def _check_peak(peak: np.float32) -> None:
    if np.isneginf(peak):
        raise DeadEnd(
            "every token is banned by logit_bias, min_tokens, logits_processors or the constraint of the answer, "
            "expected at least one left"
        )
    if not np.isfinite(peak):
        raise EngineFailed(
            f"the logits hold {peak}, expected finite numbers; the engine's output is not usable"
        )
