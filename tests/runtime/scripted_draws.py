"""A generator that forks at every draw, so that a random procedure can be summed over all it may do."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from specruntime.accept import Distribution

Result = TypeVar("Result")
Tokens = tuple[int, ...]
LawOfPrefix = Callable[[Tokens], NDArray[np.float64]]


class ScriptedDraws:
    """Follows a script of choices, then takes the first possible one and notes the others."""

    def __init__(self, script: Tokens) -> None:
        self._script = script
        self._taken: list[int] = []
        self.probability = 1.0
        self.untried: list[Tokens] = []

    def below(self, probability: float, /) -> bool:
        reached = min(max(probability, 0.0), 1.0)
        return self._choose(np.array([1 - reached, reached])) == 1

    def categorical(self, weights: Distribution, /) -> int:
        return self._choose(np.asarray(weights / weights.sum(), np.float64))

    def _choose(self, weights: NDArray[np.float64]) -> int:
        place = len(self._taken)
        possible = [int(choice) for choice in np.flatnonzero(weights > 0)]
        if place < len(self._script):
            choice = self._script[place]
        else:
            choice = possible[0]
            self.untried += [(*self._taken, other) for other in possible[1:]]
        self._taken.append(choice)
        self.probability *= float(weights[choice])
        return choice


def outcomes(run: Callable[[ScriptedDraws], Result]) -> Iterator[tuple[Result, float]]:
    """Every outcome of `run` with its probability; equal outcomes may come more than once."""
    scripts: list[Tokens] = [()]
    while scripts:
        draws = ScriptedDraws(scripts.pop())
        result = run(draws)
        scripts += draws.untried
        yield result, draws.probability


def law_of_answers(
    round_of: Callable[[ScriptedDraws], Sequence[int]], target: LawOfPrefix, length: int
) -> dict[Tokens, float]:
    """The distribution of the first `length` tokens: those one round emits, completed by plain decoding."""

    def answer(draws: ScriptedDraws) -> Tokens:
        tokens = tuple(round_of(draws))
        while len(tokens) < length:
            tokens = (*tokens, draws.categorical(target(tokens)))
        return tokens[:length]

    law: dict[Tokens, float] = {}
    for tokens, probability in outcomes(answer):
        law[tokens] = law.get(tokens, 0.0) + probability
    return law


def largest_error(law: dict[Tokens, float], target: LawOfPrefix, length: int) -> float:
    """The largest difference from the target's distribution over all answers of this length."""
    plain = law_of_answers(lambda _: (), target, length)
    return max(abs(law.get(tokens, 0.0) - plain.get(tokens, 0.0)) for tokens in law.keys() | plain.keys())


def random_laws(vocab: int, seed: int, *, zeros: float = 0.0) -> LawOfPrefix:
    """A fixed random distribution for every prefix; each probability is zero with chance `zeros`, never all of them."""

    def law(prefix: Tokens) -> NDArray[np.float64]:
        rng = np.random.default_rng([seed, len(prefix), *prefix])
        weights = rng.random(vocab) ** 2 * (rng.random(vocab) >= zeros)
        weights[rng.integers(vocab)] += 0.1
        return np.asarray(weights / weights.sum(), np.float64)

    return law
