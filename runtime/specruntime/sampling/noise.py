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
_TOKEN = "token"  # the purpose of the noise of the match rule
_CHUNK = 8192  # ids hashed at a time, so that the words stay in the cache of the core


def _mix(word: int) -> int:
    word = ((word ^ (word >> 30)) * _MIX_1) & _WORD
    word = ((word ^ (word >> 27)) * _MIX_2) & _WORD
    return word ^ (word >> 31)


def _key(seed: int, position: int, purpose: str) -> int:
    tag = int.from_bytes(blake2b(purpose.encode(), digest_size=8).digest(), "little")
    key = _mix((seed + _STEP) & _WORD)
    key = _mix(((key ^ position) + _STEP) & _WORD)
    return _mix(((key ^ tag) + _STEP) & _WORD)


def gumbel(seed: int, position: int, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """[n] standard Gumbel noise, one per token id, a function of (seed, position, id) alone; always finite.

    argmax(log p + gumbel) is a draw from p (the Gumbel-max trick). An id gets the same noise whichever other ids are
    asked for with it.
    """
    return _gumbel_of(_words(_key(seed, position, _TOKEN), ids))


def gumbel_argmax(logits: NDArray[np.float32], seed: int, position: int, ids: NDArray[np.int64]) -> int:
    """Return the index where logits [n] + gumbel(seed, position, ids) is highest, the first of equals.

    Logarithms are only taken where the sum can be the highest: it reaches a bound b when u >= exp(-exp(l - b)), which
    is at least 1 - exp(l - b), and the leading 24 bits of u exclude nearly all of a long row.
    """
    if ids.size < _CHUNK:
        return int(np.argmax(logits + gumbel(seed, position, ids)))
    key = _key(seed, position, _TOKEN)
    front = np.flatnonzero(logits >= np.max(logits) - np.float32(1))[:_CHUNK]
    bound = np.float32(np.max(logits[front] + _gumbel_of(_words(key, ids[front]))))
    chunks = (slice(start, start + _CHUNK) for start in range(0, ids.size, _CHUNK))
    rivals = np.concatenate([c.start + _rivals(logits[c], bound, _words(key, ids[c])) for c in chunks])
    return int(rivals[np.argmax(logits[rivals] + _gumbel_of(_words(key, ids[rivals])))])


def _rivals(logits: NDArray[np.float32], bound: np.float32, word: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the places, and a few more, where logits + noise may reach the bound."""
    # The slacks, 1e-5 of the exponential and 4 units of 2**-24, exceed what fp32 rounds away.
    unlikely = np.exp(logits - bound)
    unlikely *= np.float32(-1.00001 * 2**24)
    unlikely += np.float32(2**24 - 4)
    word >>= np.uint64(40)
    return np.flatnonzero(word.astype(np.float32) >= unlikely)


def _words(key: int, ids: NDArray[np.int64]) -> NDArray[np.uint64]:
    """[n] random 64-bit words: the outputs number id + 1 of SplitMix64."""
    word = ids.astype(np.uint64)
    shifted = np.empty_like(word)
    word *= np.uint64(_STEP)
    word += np.uint64((key + _STEP) & _WORD)
    word ^= np.right_shift(word, np.uint64(30), out=shifted)
    word *= np.uint64(_MIX_1)
    word ^= np.right_shift(word, np.uint64(27), out=shifted)
    word *= np.uint64(_MIX_2)
    word ^= np.right_shift(word, np.uint64(31), out=shifted)
    return word


def _gumbel_of(word: NDArray[np.uint64]) -> NDArray[np.float64]:
    # 52 bits and a half: never 0 and never 1, both of which would give an infinity.
    uniform = ((word >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    return np.asarray(-np.log(-np.log(uniform)), np.float64)


class NoiseStream:
    """The uniform numbers in [0, 1) for one purpose at one output position, in order. The only state is a counter."""

    def __init__(self, seed: int, position: int, purpose: str) -> None:
        self._state = _key(seed, position, purpose)

    def uniform(self) -> float:
        """Return the next number, in [0, 1) with 53 bits."""
        self._state = (self._state + _STEP) & _WORD
        return float((_mix(self._state) >> 11) * 2.0**-53)

    def below(self, probability: float) -> bool:
        """Return True with this probability: u < probability, strictly, so that 0 is never and 1 or more is always."""
        return self.uniform() < probability

    def categorical(self, weights: NDArray[np.floating]) -> int:
        """Return an index drawn in proportion to `weights` [n], not negative, not all zero; never one of weight
        zero.
        """
        cumulative = np.cumsum(weights, dtype=np.float64)
        index = int(np.searchsorted(cumulative, self.uniform() * cumulative[-1], side="right"))
        if index < cumulative.size:
            return index
        return int(np.flatnonzero(weights)[-1])  # the product above rounded up to the total
