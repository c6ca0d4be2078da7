"""A grammar without a library: what may follow is a random function of the tokens before, forced at some places."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specruntime.sampling.constraint import Constraint, bits_of


class Toy:
    """The grammar: `texts` of some prefixes is one token alone, `complete` says where an answer may end."""

    def __init__(
        self,
        seed: int,
        vocab: int,
        ends: Sequence[int],
        *,
        share: float = 0.5,
        forced: float = 0.2,
        ending: float = 0.3,
    ) -> None:
        self.seed, self.vocab, self.ends = seed, vocab, tuple(ends)
        self._share, self._forced, self._ending = share, forced, ending
        self._texts: dict[tuple[int, ...], NDArray[np.bool_]] = {}
        self._complete: dict[tuple[int, ...], bool] = {}

    def texts(self, prefix: Sequence[int]) -> NDArray[np.bool_]:
        """[vocab] without end tokens; of none at all where the answer can only end."""
        key = tuple(prefix)
        if key not in self._texts:
            self._texts[key] = self._find(key)
        return self._texts[key].copy()

    def complete(self, prefix: Sequence[int]) -> bool:
        key = tuple(prefix)
        if key not in self._complete:
            may_end = bool(self._random(prefix, 1).random() < self._ending)
            self._complete[key] = may_end or not self.texts(prefix).any()
        return self._complete[key]

    def _find(self, prefix: Sequence[int]) -> NDArray[np.bool_]:
        random = self._random(prefix)
        others = np.setdiff1d(np.arange(self.vocab), self.ends)
        allowed = np.zeros(self.vocab, np.bool_)
        kind = random.random()
        if kind < self._ending / 2:
            return allowed
        if kind < self._ending / 2 + self._forced:
            allowed[random.choice(others)] = True
            return allowed
        allowed[others] = random.random(others.size) < self._share
        allowed[random.choice(others)] = True
        return allowed

    def mask(self, prefix: Sequence[int]) -> NDArray[np.bool_]:
        """[vocab] what may follow, by the rules of `Constraint` written out once more."""
        allowed = self.texts(prefix)
        if not allowed.any():
            allowed[self.ends[0]] = True
        elif self.complete(prefix):
            allowed[list(self.ends)] = True
        return allowed

    def allows(self, answer: Sequence[int]) -> bool:
        """Whether each token of the answer may follow those before it, and nothing follows an end."""
        whole = all(self.mask(answer[:place])[token] for place, token in enumerate(answer))
        return whole and not set(answer[:-1]) & set(self.ends)

    def constraint(self) -> Constraint:
        return Constraint(ToyMatcher(self), self.vocab, self.ends)

    def _random(self, prefix: Sequence[int], purpose: int = 0) -> np.random.Generator:
        return np.random.default_rng([self.seed, purpose, len(prefix), *prefix])


class ToyMatcher:
    """A `Matcher` of the grammar. Refuses a call that the protocol does not allow."""

    def __init__(self, toy: Toy) -> None:
        self.toy = toy
        self.tokens: list[int] = []
        self.found = 0  # masks

    def words(self) -> NDArray[np.int32]:
        self.found += 1
        return bits_of(np.flatnonzero(self.toy.texts(self.tokens)).tolist(), self.toy.vocab)

    def complete(self) -> bool:
        return self.toy.complete(self.tokens)

    def advance(self, token: int) -> bool:
        assert token not in self.toy.ends, "a matcher never sees an end token"
        if not self.toy.texts(self.tokens)[token]:
            return False
        self.tokens.append(token)
        return True

    def back(self, count: int) -> None:
        assert 0 <= count <= len(self.tokens)
        del self.tokens[len(self.tokens) - count :]
