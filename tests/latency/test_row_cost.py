"""What a round costs on the host: a row of a real vocabulary with softmax and truncation, a search for n-grams."""

from time import perf_counter

import numpy as np
import pytest

from specruntime.drafts.lookup import find_continuation
from specruntime.sampling.params import SamplingParams
from specruntime.sampling.sampler import Sampler

VOCAB = 49_152
BUDGET_MS = 0.4


def test_a_row_at_temperature_and_top_p_stays_within_its_budget() -> None:
    """Logits spread as a language model's, a few nats wide; the fastest of many, as other work may interrupt."""
    row = (np.random.default_rng(0).standard_normal(VOCAB) * 3).astype(np.float32)
    sampler = Sampler(SamplingParams(temperature=0.7, top_p=0.9), VOCAB, (2,), (1,))
    times: list[float] = []
    for position in range(200):
        start = perf_counter()
        sampler.sample(row, (0,) * position)
        times.append(1e3 * (perf_counter() - start))
    assert min(times) < BUDGET_MS


@pytest.mark.parametrize("vocab", [1, 60, 20_000])
def test_a_search_takes_microseconds_at_four_thousand_tokens(vocab: int) -> None:
    tokens = np.random.default_rng(0).integers(0, vocab, 4096)
    best = float("inf")
    for _ in range(50):
        started = perf_counter()
        find_continuation(tokens, 3, 2)
        best = min(best, perf_counter() - started)
    assert best < 200e-6, "tens of microseconds are usual"
