"""Keyed randomness: every number is a hash of what it is for, so nothing has to be stored, advanced or rolled back.

SplitMix64 (Steele, Lea, Flood 2014) run as a counter-based generator: the key is a hash of (seed, output position,
purpose) and the n-th number is the n-th output of SplitMix64 started there. Knows nothing of logits or drafts.
"""

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

_WORD = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB


def _mix(word: int) -> int:
    word = ((word ^ (word >> 30)) * _MIX_1) & _WORD
    word = ((word ^ (word >> 27)) * _MIX_2) & _WORD
    return word ^ (word >> 31)


def _key(seed: int, position: int, purpose: str) -> int:
    tag = int.from_bytes(blake2b(purpose.encode(), digest_size=8).digest(), "little")
    key = _mix((seed + _STEP) & _WORD)
    key = _mix((key ^ position) + _STEP & _WORD)
    return _mix((key ^ tag) + _STEP & _WORD)


def words(seed: int, position: int, ids: NDArray[np.int64]) -> NDArray[np.uint64]:
    """[n] random 64-bit words, one per token id at this output position."""
    key = np.uint64(_key(seed, position, "token"))
    word = ids.astype(np.uint64)
    word += np.uint64(1)
    word *= np.uint64(_STEP)
    word += key
    word ^= word >> np.uint64(30)
    word *= np.uint64(_MIX_1)
    word ^= word >> np.uint64(27)
    word *= np.uint64(_MIX_2)
    word ^= word >> np.uint64(31)
    return word


def gumbel(seed: int, position: int, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """[n] standard Gumbel noise, one per token id, a function of (seed, position, id) alone; always finite.

    argmax(log p + gumbel) is a draw from p (the Gumbel-max trick). An id gets the same noise whichever other ids are
    asked for with it.
    """
    return _gumbel_of(words(seed, position, ids))


def _gumbel_of(word: NDArray[np.uint64]) -> NDArray[np.float64]:
    # 52 bits and a half: never 0 and never 1, both of which would give an infinity.
    uniform = ((word >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    return -np.log(-np.log(uniform))


class Stream:
    """The uniform numbers in [0, 1) for one purpose at one output position, in order. The only state is a counter."""

    def __init__(self, seed: int, position: int, purpose: str) -> None:
        self._state = _key(seed, position, purpose)

    def uniform(self) -> float:
        """The next number, in [0, 1) with 53 bits."""
        self._state = (self._state + _STEP) & _WORD
        return float((_mix(self._state) >> 11) * 2.0**-53)

    def below(self, probability: float) -> bool:
        """True with this probability: u < probability, strictly, so that 0 is never and 1 or more is always."""
        return self.uniform() < probability

    def categorical(self, weights: NDArray[np.floating]) -> int:
        """An index drawn in proportion to `weights` [n], not negative, not all zero; never one of weight zero."""
        cumulative = np.cumsum(weights, dtype=np.float64)
        index = int(np.searchsorted(cumulative, self.uniform() * cumulative[-1], side="right"))
        if index < cumulative.size:
            return index
        return int(np.flatnonzero(weights)[-1])  # the product above rounded up to the total
