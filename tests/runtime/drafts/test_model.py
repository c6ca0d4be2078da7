"""The draft model proposes its own continuation and keeps its cache in step with what was committed."""

from dataclasses import replace

import numpy as np
import pytest

from specruntime.drafts import Room
from specruntime.drafts.model import ModelProposer
from specruntime.errors import EngineFailed
from specruntime.sampling.params import SamplingParams
from specruntime.sampling.sampler import Sampler
from tests.runtime.scripted_engine import (
    VOCAB,
    Bench,
    Language,
    ScriptedContext,
    clean_logits,
    clean_rows,
    draft_spec,
    reference_decode,
    target_spec,
)

GREEDY = SamplingParams()
REJECTION = SamplingParams(temperature=0.8, frequency_penalty=2.0, accept="rejection")
PROMPT = [5, 9, 2, 40, 7, 11]


class Drafting:
    """A proposer, and the tokens a session would have committed."""

    def __init__(self, params: SamplingParams = GREEDY, *, k: int = 4, capacity: int = 64) -> None:
        self.language = Language()
        self.context = ScriptedContext(draft_spec(capacity=capacity), self.language)
        self.proposer = ModelProposer(self.context, k=k)
        self.sampler = Sampler(params, VOCAB, (), PROMPT)
        self.params = params
        self.tokens = list(PROMPT)

    def propose(self, limit: int = 99) -> list[int]:
        self.context.runs.clear()
        self.last = self.proposer.propose(np.array(self.tokens), Room(limit, limit), self.sampler)
        return [int(token) for token in self.last.ids]

    def commit(self, *tokens: int) -> None:
        self.tokens += tokens
        self.sampler.commit(tokens)

    def expected(self, count: int) -> list[int]:
        return reference_decode(self.language, self.tokens, count, self.params)


def test_catch_up_follows_from_what_was_committed() -> None:
    drafting = Drafting()
    drafts = drafting.propose()
    assert drafts == drafting.expected(4) and drafting.context.runs == ["prefill", "step", "step", "step"]

    drafting.commit(*drafts, 3)  # all accepted: it has not seen its own last token
    drafts = drafting.propose()
    assert drafts == drafting.expected(4) and drafting.context.runs == ["catch_up", "step", "step", "step"]

    drafting.commit(*drafts[:2], 3)  # some accepted: only the correction is new
    drafts = drafting.propose()
    assert drafts == drafting.expected(4) and drafting.context.runs == ["step"] * 4

    drafting.commit((drafts[0] + 1) % VOCAB)  # none accepted
    drafts = drafting.propose()
    assert drafts == drafting.expected(4) and drafting.context.runs == ["step"] * 4

    drafting.commit(*range(30))  # a prompt appended behind its back
    assert drafting.propose() == drafting.expected(4)
    assert np.array_equal(drafting.context.rows(39), clean_rows(drafting.tokens[:39]))


def test_a_limit_below_k_spends_no_step_too_many() -> None:
    drafting = Drafting()
    for limit in (3, 2, 1):
        assert drafting.propose(limit) == drafting.expected(limit)
        assert len(drafting.context.runs) == limit
    assert drafting.propose(0) == [] and drafting.context.runs == []


def test_rewinding_forgets_drafted_rows_that_look_right() -> None:
    drafting = Drafting()
    drafts = drafting.propose()
    drafting.commit(*drafts, 3)
    drafts = drafting.propose()
    length = len(PROMPT) + 1
    drafting.proposer.rewind(length)
    drafting.tokens = [*drafting.tokens[:length], *drafts[:2], 3]
    assert drafting.propose() == drafting.expected(4)


def test_the_same_tokens_twice_propose_the_same() -> None:
    drafting = Drafting()
    assert drafting.propose() == drafting.propose() == drafting.expected(4)


def test_it_is_silent_past_its_capacity() -> None:
    drafting = Drafting(capacity=8)
    assert len(drafting.propose()) == 3  # rows 0..7 hold six tokens and two of its drafts
    drafting.commit(1, 2, 3)
    assert len(drafting.tokens) == 9 and drafting.propose() == []
    drafting.tokens = drafting.tokens[:8]
    assert len(drafting.propose()) == 1


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.8, top_p=0.9, seed=3),
        SamplingParams(repetition_penalty=1.4),
        SamplingParams(temperature=1.0, frequency_penalty=1.0, seed=9),
    ],
)
def test_match_drafts_with_the_noise_and_penalties_of_the_answer(params: SamplingParams) -> None:
    drafting = Drafting(params)
    drafts = drafting.propose()
    assert drafts == drafting.expected(4) and drafting.last.probabilities is None


def test_rejection_reports_the_law_each_draft_was_drawn_from() -> None:
    counts = np.zeros(VOCAB)
    for seed in range(300):
        drafting = Drafting(replace(REJECTION, seed=seed), k=2)
        drafts = drafting.propose()
        laws = drafting.last.probabilities
        assert laws is not None and laws.shape == (2, VOCAB) and laws.dtype == np.float32
        assert np.allclose(laws.sum(axis=1), 1, atol=1e-6) and all(
            laws[i, t] > 0 for i, t in enumerate(drafts)
        )
        logits = drafting.language.logits(clean_rows([*PROMPT, drafts[0]]))
        assert np.array_equal(laws[1], drafting.sampler.distribution(logits, drafts[:1]))
        counts[drafts[0]] += 1
        law = laws[0]
    assert np.abs(counts / 300 - law).max() < 0.1


def test_rejection_at_temperature_zero_is_deterministic() -> None:
    drafting = Drafting(SamplingParams(accept="rejection"))
    assert drafting.propose() == drafting.expected(4) and drafting.last.probabilities is None


def test_greedy_never_reads_logits() -> None:
    drafting = Drafting()
    drafting.context.logits = None  # type: ignore[assignment,method-assign]
    assert drafting.propose() == drafting.expected(4)


def test_reset_heals_a_failed_cache() -> None:
    drafting = Drafting()
    drafting.propose()
    drafting.context.failing = lambda: True
    with pytest.raises(EngineFailed):
        drafting.propose()
    drafting.context.failing = lambda: False
    drafting.proposer.reset()
    assert not drafting.context.rows(64).any()
    assert drafting.propose() == drafting.expected(4)


@pytest.mark.parametrize(
    "params", [GREEDY, SamplingParams(temperature=0.8, seed=2)], ids=["greedy", "sampled"]
)
def test_a_token_the_model_doubts_is_the_last_of_its_round(params: SamplingParams) -> None:
    """Its own probability at temperature 1, whatever the sampling; the doubted token is still proposed."""
    plain, stopping = Drafting(params, k=8), Drafting(params, k=8)
    expected = plain.propose()
    chances = []
    for depth, token in enumerate(expected):
        logits = clean_logits(plain.language, [*PROMPT, *expected[:depth]]).astype(np.float64)
        chances.append(float(np.exp(logits[token]) / np.exp(logits).sum()))
    bound = sum(sorted(chances)[2:4]) / 2
    last = next(depth for depth, chance in enumerate(chances) if chance < bound)
    stopping.proposer = ModelProposer(stopping.context, k=8, stop_below=bound)
    assert stopping.propose() == expected[: last + 1]
    assert len(stopping.context.runs) == last + 1, "no step is spent behind it"
    assert 0 < last < 7


def test_a_confidence_stop_changes_no_token() -> None:
    for params in (
        GREEDY,
        SamplingParams(temperature=0.9, seed=6),
        SamplingParams(temperature=0.9, accept="rejection"),
    ):
        context = ScriptedContext(draft_spec(capacity=200), Language(drift=2))
        draft = ModelProposer(context, k=4, stop_below=0.5)
        bench = Bench(target=target_spec(capacity=200), proposer=draft)
        tokens = bench.decode(PROMPT, 60, params)
        stats = bench.session.stats
        assert 0 < stats.accepted < stats.proposed < 4 * stats.rounds
        if params.accept == "match":
            assert tokens == reference_decode(bench.language, PROMPT, 60, params)
