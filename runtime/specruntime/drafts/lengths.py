"""How many tokens are worth drafting: estimates of acceptance and time, and the speed that follows from them.

Pure: fed with what rounds did and how long they took, it reads no clock and no tokens. A *size* is a number of drafted
tokens that a draft may be asked for: any length of a chain, of a tree the node counts that fill a window. Times are
seconds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log

_NOISE = 1.5  # a single time this many times longer or shorter than expected counts as no more than this
_FIRST = 3  # times of a key of which a short one is believed at once
_MOST_WEIGHT = 8.0  # of a key's own times, in single ones
_FADING = 0.99  # of that weight with each time of another key
_COMMON_WEIGHT = 0.5  # of what all keys say, in an estimate of one


class StepTimes:
    """Expected seconds by key: a seed each, times how much longer than the seeds things take here and now.

    The seeds come from another hour or machine and from one length of context. Each key has a ratio of its own; one
    that was not measured lately leans towards what the others say. Before any key was measured, the ratio is that of
    the times that this one follows: another machine is faster or slower at both.
    """

    def __init__(self, seeds: Mapping[int, float]) -> None:
        self._seeds = dict(seeds)
        self._ratios = dict.fromkeys(self._seeds, 0.0)  # natural logarithms
        self._weights = dict.fromkeys(self._seeds, 0.0)
        self._counts = dict.fromkeys(self._seeds, 0)
        self._followed: StepTimes | None = None

    def follow(self, others: "StepTimes") -> None:
        """Take the ratio of `others`, of seeds from the same machine, until a time of this one is measured."""
        self._followed = others

    def __getitem__(self, key: int) -> float:
        own, shared = self._weights[key], _COMMON_WEIGHT
        ratio = (own * self._ratios[key] + shared * self._common()) / (own + shared)
        return self._seeds[key] * exp(ratio)

    def __contains__(self, key: int) -> bool:
        return key in self._seeds

    def keys(self) -> list[int]:
        """Ascending."""
        return sorted(self._seeds)

    def count(self, key: int) -> int:
        """How often this key was measured."""
        return self._counts[key]

    def observe(self, key: int, seconds: float) -> None:
        """Take in a time. What disturbs a time makes it longer: a short one of the first few is believed at once, a
        long one partly.
        """
        ratio = log(max(seconds, 1e-9) / self._seeds[key])
        known = any(self._counts.values())
        # Of a key that was not measured before, what the others say; its own ratio is not known yet.
        expected = self._ratios[key] if self._counts[key] else self._common()
        for other in self._weights:
            self._weights[other] *= _FADING if other != key else 1.0
        self._counts[key] += 1
        self._weights[key] = min(self._weights[key] + 1, _MOST_WEIGHT)
        if not known or (self._counts[key] <= _FIRST and ratio < expected):
            self._ratios[key] = ratio
            return
        surprise = min(max(ratio - expected, -log(_NOISE)), log(_NOISE))
        self._ratios[key] = expected + surprise / min(self._counts[key] + 1, _MOST_WEIGHT)

    def _common(self) -> float:
        total = sum(self._weights.values())
        weighted = sum(weight * self._ratios[key] for key, weight in self._weights.items())
        if total:
            return weighted / total
        return self._followed._common() if self._followed is not None else 0.0


class Acceptance:
    """Expected accepted drafts by length of a chain, from the conditional rate of each position in recent rounds.

    Rounds that drafted less than a position say nothing of it, and what is known of the earlier ones carries on.
    """

    def __init__(
        self, k: int, prior: Sequence[float] = (0.5,), *, weight: float = 2.0, memory: float = 24.0
    ) -> None:
        """`prior`: rates of the first positions, the last of them for all that follow; worth `weight` judged drafts.

        Older drafts than the last `memory` fade.
        """
        self.sizes = tuple(range(1, k + 1))
        self._prior = [prior[min(position, len(prior) - 1)] for position in range(k)]
        self._weight, self._memory = weight, memory
        self._hits, self._trials = [weight * rate for rate in self._prior], [weight] * k

    def observe(self, proposed: int, path: Sequence[int]) -> None:
        """`path`: the accepted ones of `proposed` drafts."""
        kept = 1 - 1 / self._memory
        for position in range(min(proposed, len(path) + 1, len(self.sizes))):
            self._hits[position] = kept * self._hits[position] + (position < len(path))
            self._trials[position] = kept * self._trials[position] + 1

    def expected(self) -> list[float]:
        """Return the expected accepted drafts of a round, for each length."""
        reached, total, gains = 1.0, 0.0, []
        for hits, trials in zip(self._hits, self._trials, strict=True):
            reached *= hits / trials
            total += reached
            gains.append(total)
        return gains

    def begin_text(self) -> None:
        """Another text: what was learned is half believed, and weighs no more than the prior did."""
        for position, (hits, trials) in enumerate(zip(self._hits, self._trials, strict=True)):
            self._hits[position] = self._weight * (hits / trials + self._prior[position]) / 2
            self._trials[position] = self._weight


class TreeAcceptance:
    """Expected accepted drafts by size, for trees: sizes are whole shapes, and a smaller one is not part of a larger.

    Every size has a prior, and how far rounds reached beyond or below the prior of theirs is taken to hold for all.
    """

    def __init__(
        self, sizes: Sequence[int], prior: Sequence[float], *, weight: float = 2.0, memory: float = 24.0
    ) -> None:
        """`prior` are accepted drafts of a round by size, worth `weight` rounds; older than `memory` rounds fade."""
        assert len(sizes) == len(prior) and list(sizes) == sorted(set(sizes)), "sizes ascend, one prior each"
        self.sizes = tuple(sizes)
        self._prior, self._weight, self._memory = tuple(prior), weight, memory
        self._reached, self._expected = weight, weight

    def observe(self, proposed: int, path: Sequence[int]) -> None:
        """`path`: accepted window rows of `proposed` nodes; a tree cut to a room counts as the next larger size."""
        prior = next((p for size, p in zip(self.sizes, self._prior, strict=True) if size >= proposed), None)
        if prior is not None:
            kept = 1 - 1 / self._memory
            self._reached = kept * self._reached + len(path) / prior
            self._expected = kept * self._expected + 1

    def expected(self) -> list[float]:
        """Return accepted drafts of a round, for each size."""
        return [prior * self._reached / self._expected for prior in self._prior]

    def begin_text(self) -> None:
        """Another text: what was learned is half believed, and weighs no more than the prior did."""
        self._reached = self._weight * (self._reached / self._expected + 1) / 2
        self._expected = self._weight


@dataclass(frozen=True, slots=True)
class Plan:
    """A size with the tokens per second expected of it, and the seconds lost should nothing be accepted."""

    size: int
    speed: float
    loss: float


def plans(
    acceptance: Acceptance | TreeAcceptance, draft: StepTimes | None, verify: StepTimes, limit: int
) -> list[Plan]:
    """For each size up to `limit`: expected tokens over expected time, times taken by size and by width.

    `draft` None: drafting is done or costs nothing. A size is judged in the narrowest window that `verify` knows to
    hold it; sizes that fit none are left out.
    """
    found = []
    widths = verify.keys()
    for size, gain in zip(acceptance.sizes, acceptance.expected(), strict=True):
        width = next((width for width in widths if width > size), None)
        if size > limit or width is None:
            break
        seconds = verify[width] + (draft[size] if draft is not None else 0.0)
        found.append(Plan(size, (1 + gain) / seconds, seconds - verify[1]))
    return found


class Credit:
    """Seconds that speculation may yet lose against plain decoding: the bound on what a bad guess can cost.

    A text starts with the time of `START` plain steps and earns `SHARE` of all time; speculation pays what it loses
    and banks what it gains, up to `MOST` plain steps. So over T seconds with n tokens speculation loses no more than
    START / n + SHARE of them, assuming the measured times hold.
    """

    START = 1.75
    SHARE = 0.0075
    MOST = 4.0

    def __init__(self) -> None:
        self.steps = self.START  # in plain steps

    def begin_text(self) -> None:
        """Reset the credit: what was lost on one text is not made up for on the next."""
        self.steps = self.START

    def allows(self, loss: float, plain: float) -> bool:
        """Whether a round that may lose `loss` seconds can be paid; `plain` is the time of a plain step."""
        return loss <= self.steps * plain

    def earn(self, seconds: float, plain: float) -> None:
        """Time that passed, in whatever way."""
        self.steps = min(self.steps + self.SHARE * seconds / plain, self.MOST)

    def book(self, tokens: int, seconds: float, plain: float) -> None:
        """Count a round that speculated: `tokens` tokens in `seconds`, against as many plain steps."""
        self.steps = min(self.steps + tokens - seconds / plain, self.MOST)
