"""Predicts speed from acceptance and times, for every length of a chain and every tree.

speed = tokens of a round / (drafting + one target window + the loop). Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from specexport.trees import Rates, TimedTree, best_tree_for_times, chain_of, expected_tokens
from specexport.tune.probing import Probe


@dataclass(frozen=True, slots=True)
class Prediction:
    """One size of a draft, or plain decoding (size 0)."""

    size: int
    width: int
    tokens: float  # of a round
    ms: float  # of a round
    speedup: float  # against a plain round

    @property
    def tokens_per_second(self) -> float:
        return 1e3 * self.tokens / self.ms

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {**asdict(self), "tokens_per_second": self.tokens_per_second}


def predict(probe: Probe, verify_ms: Mapping[int, float], *, chain: bool) -> list[Prediction]:
    """Plain decoding, then each probed size in ascending order.

    Rounds in which the draft finds nothing are plain steps. A chain's tokens follow from the rate of each position, a
    tree's are those its rounds of that size accepted.
    """
    plain = verify_ms[1] + probe.overhead_ms
    found = [Prediction(0, 1, 1.0, plain, 1.0)]
    draft_ms, rates = probe.draft_ms(), probe.acceptance()
    for size in sorted(probe.sizes):
        width = next((width for width in sorted(verify_ms) if width > size), None)
        if width is None or size not in draft_ms:
            continue
        proposing = probe.proposing(size)
        gain = _chain_gain(rates, size) if chain else probe.accepted(size)
        tokens = 1 + proposing * gain
        judging = proposing * (draft_ms[size] + verify_ms[width]) + (1 - proposing) * verify_ms[1]
        ms = judging + probe.overhead_ms
        found.append(Prediction(size, width, tokens, ms, tokens * plain / ms))
    return found


def _chain_gain(rates: Rates, size: int) -> float:
    length = min(size, len(rates))
    return expected_tokens(chain_of(length), rates) - 1 if length else 0.0


def predict_tree(probe: Probe, verify_ms: Mapping[int, float], depth: int) -> TimedTree | None:
    """Return the tree of highest predicted speed for these rates and times; None where nothing was ever accepted.

    Drafting is taken to cost as much for each level as it did for the whole of `depth` levels.
    """
    rates, draft_ms = probe.acceptance()[:depth], probe.draft_ms()
    if not draft_ms or not rates or not any(rates[0]):
        return None
    level = draft_ms[max(draft_ms)] / depth
    times = [level * count for count in range(1, len(rates) + 1)]
    return best_tree_for_times(bounded(rates), verify_ms, times, probe.overhead_ms)


def bounded(rates: Rates) -> list[list[float]]:
    """Rates whose ranks exclude each other: measured on few rounds they may sum to more than 1."""
    return [[rate / max(1.0, sum(ranks)) for rate in ranks] for ranks in rates]


def verify_times(probe: Probe, stepped: Mapping[int, float], widths: Sequence[int]) -> dict[int, float]:
    """Milliseconds of each judging width: as rounds had them; of widths that no round used, as the bundle's steps.

    The latter are brought to the time of a plain step in these rounds.
    """
    seen = probe.verify_ms()
    ratio = seen[1] / stepped[1] if 1 in seen and stepped.get(1) else 1.0
    known = {
        width: seen[width] if width in seen else stepped[width] * ratio
        for width in widths
        if width in seen or width in stepped
    }
    # A wider window never takes less: a few disturbed rounds that suggest otherwise must not lead to longer drafts.
    ordered = sorted(known)
    return dict(
        zip(ordered, np.maximum.accumulate([known[width] for width in ordered]).tolist(), strict=True)
    )
