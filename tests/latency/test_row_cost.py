"""What choosing a token costs on the host: one row of a real vocabulary, softmax and truncation included."""

from time import perf_counter

import numpy as np

from specruntime.sampling import Sampler, SamplingParams

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
