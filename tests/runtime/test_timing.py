"""The clock of an answer counts decoding, not what its reader does."""

import pytest

from specruntime.errors import EmptyPrompt
from specruntime.generation import TimedAnswer
from specruntime.sampling.params import SamplingParams
from tests.runtime.scripted_engine import Bench
from tests.scripted_clock import CLOCK


def test_a_slow_reader_costs_nothing() -> None:
    answer = TimedAnswer(Bench().session, [1, 2, 3], SamplingParams(max_tokens=5))
    before = CLOCK()
    for _ in answer:
        CLOCK.advance(60.0)
    assert answer.new_tokens == 5
    assert answer.seconds < 1 and CLOCK() - before > 300


def test_the_figures_fit_together() -> None:
    bench = Bench()
    answer = TimedAnswer(bench.session, [1, 2, 3], SamplingParams(max_tokens=8))
    tokens = [token for delta in answer for token in delta.tokens]
    assert len(tokens) == answer.new_tokens == 8
    assert 0 < answer.first_seconds < answer.seconds
    assert answer.tokens_per_second == pytest.approx(8 / answer.seconds)
    assert answer.decode_tokens_per_second == pytest.approx(7 / (answer.seconds - answer.first_seconds))
    assert 0 < answer.engine_seconds < answer.seconds
    assert 0 < answer.host_percent < 100
    assert {"ttft_ms", "host_percent", "rounds", "acceptance_length"} <= answer.as_dict().keys()


def test_one_token_has_no_decoding_speed() -> None:
    answer = TimedAnswer(Bench().session, [1], SamplingParams(max_tokens=1))
    list(answer)
    assert answer.decode_tokens_per_second == 0


def test_a_prompt_is_refused_before_anything_is_decoded() -> None:
    with pytest.raises(EmptyPrompt):
        TimedAnswer(Bench().session, [], SamplingParams())
