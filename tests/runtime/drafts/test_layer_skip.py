"""The target drafts for itself: no catch-up, no state, and no committed cache row is ever written."""

from dataclasses import replace

import numpy as np
import pytest

from specruntime.drafts import LayerSkipDraft, Room
from specruntime.drafts.layer_skip import LayerSkipProposer
from specruntime.errors import BundleInvalid
from specruntime.sampling.params import SamplingParams
from specruntime.sampling.sampler import Sampler
from tests.runtime.drafts.draft_distributions import law_of_first, require_drawn_from
from tests.runtime.scripted_draft import SkippingTarget, skipping_spec
from tests.runtime.scripted_engine import VOCAB, Language, clean_logits, clean_rows, target_spec

GREEDY = SamplingParams()
REJECTION = SamplingParams(temperature=0.8, frequency_penalty=2.0, accept="rejection")
PROMPT = [5, 9, 2, 40, 7, 11]


class Drafting:
    """A proposer over a target whose cache holds all tokens but the last, as a session leaves it."""

    def __init__(
        self,
        params: SamplingParams = GREEDY,
        *,
        k: int = 4,
        capacity: int = 64,
        shallow: Language | None = None,
        prompt: list[int] = PROMPT,
    ) -> None:
        self.language = Language()
        self.shallow = shallow or self.language
        spec = skipping_spec(capacity=capacity)
        self.target = SkippingTarget(spec, self.language, self.shallow)
        self.draft = LayerSkipProposer(self.target, LayerSkipDraft(k=k, layers=(0,)))
        self.sampler = Sampler(params, VOCAB, (), prompt)
        self.tokens = list(prompt)

    def propose(self, depth: int = 99, nodes: int = 99) -> list[int]:
        self.target.runs.clear()
        committed = clean_rows(self.tokens[:-1]) if len(self.tokens) > 1 else np.zeros((0, 2), np.float32)
        self.target._cache[0, 0, : len(committed)] = committed
        self.target.poison(len(committed), 7777.0)
        self.last = self.draft.propose(np.array(self.tokens), Room(depth, nodes), self.sampler)
        assert np.array_equal(self.target.rows(len(committed)), committed), "committed rows are not touched"
        used = len(committed) + len(self.last.ids)
        assert (self.target.rows(self.target.spec.capacity)[used:] == 7777.0).all(), (
            "nor any beyond its steps"
        )
        return [int(token) for token in self.last.ids]

    def expected(self, count: int) -> list[int]:
        """What plain decoding with the kept layers goes on with."""
        tokens: list[int] = []
        while len(tokens) < count:
            logits = clean_logits(self.shallow, [*self.tokens, *tokens])
            tokens.append(self.sampler.sample(logits, tokens))
        return tokens

    def commit(self, *tokens: int) -> None:
        self.tokens += tokens
        self.sampler.commit(tokens)


@pytest.mark.parametrize("k", [1, 2, 4, 7])
def test_every_draft_is_one_step_whatever_was_accepted(k: int) -> None:
    drafting = Drafting(k=k, capacity=512, shallow=Language(drift=3.0))
    for round in range(50):
        drafts = drafting.propose()
        assert drafts == drafting.expected(k) and drafting.target.runs == ["draft"] * k
        drafting.commit(*drafts[: round % (k + 1)], (drafts[0] + round) % VOCAB)


def test_its_rows_are_those_of_the_drafted_tokens() -> None:
    drafting = Drafting()
    drafts = drafting.propose()
    story = [*PROMPT, *drafts[:-1]]
    assert np.array_equal(drafting.target.rows(len(story)), clean_rows(story))


@pytest.mark.parametrize("k", [1, 2, 4, 7])
def test_with_every_layer_kept_it_is_always_right(k: int) -> None:
    for params in (GREEDY, SamplingParams(temperature=0.8, top_p=0.9, repetition_penalty=1.4, seed=3)):
        drafting = Drafting(params, k=k, capacity=512)
        for _ in range(50):
            drafts = drafting.propose()
            logits = clean_logits(drafting.language, [*drafting.tokens, *drafts])
            answer = [*drafts, drafting.sampler.sample(logits, drafts)]
            assert drafts == drafting.expected(k) and drafting.last.probabilities is None
            drafting.commit(*answer)


def test_room_and_capacity_bound_its_steps() -> None:
    drafting = Drafting(capacity=8)
    assert drafting.propose(2) == drafting.expected(2)
    assert drafting.propose(9, 1) == drafting.expected(1)
    assert drafting.propose(0) == [] and drafting.propose(9, 0) == [] and drafting.target.runs == []
    for length in range(1, 10):
        drafting = Drafting(capacity=8, prompt=list(range(length)))
        assert drafting.propose() == drafting.expected(min(4, 8 - length + 1))


def test_rejection_reports_the_law_each_draft_was_drawn_from() -> None:
    firsts = []
    for seed in range(200):
        drafting = Drafting(replace(REJECTION, seed=seed), k=2)
        drafts = drafting.propose()
        assert len(drafts) == 2
        law = law_of_first(drafting.last, drafts, PROMPT, drafting.shallow, drafting.sampler)
        firsts.append(drafts[0])
    require_drawn_from(law, firsts)


def test_rejection_at_temperature_zero_is_deterministic() -> None:
    drafting = Drafting(SamplingParams(accept="rejection"))
    assert drafting.propose() == drafting.expected(4) and drafting.last.probabilities is None


def test_greedy_never_reads_logits() -> None:
    drafting = Drafting()
    drafting.target.logits = None  # type: ignore[assignment,method-assign]
    assert drafting.propose() == drafting.expected(4)


def test_it_leaves_the_sessions_context_to_the_session() -> None:
    drafting = Drafting()
    before = drafting.propose()
    drafting.draft.rewind(3)
    drafting.draft.reset()
    drafting.draft.close()
    assert not drafting.target.closed and drafting.propose() == before


def test_a_target_without_the_profile_is_refused() -> None:
    target = target_spec().model_copy(update={"layers": 2})
    with pytest.raises(BundleInvalid, match="target has no profile 'draft', which this draft runs"):
        LayerSkipDraft(k=4, layers=(0,)).check(target)
