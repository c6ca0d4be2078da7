"""Every kind of draft in a session: the tokens are plain decoding's, and both caches are those of a clean run."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specruntime.drafts import Draft, LayerSkipDraft, NoneDraft
from specruntime.drafts.eagle import DynamicTree, EagleProposer
from specruntime.drafts.layer_skip import LayerSkipProposer
from specruntime.drafts.medusa import MedusaProposer
from specruntime.errors import CapacityExceeded
from specruntime.manifest.schema import TreeSpec
from specruntime.sampling.constraint import Constrain, unconstrained
from specruntime.sampling.params import SamplingParams
from specruntime.sampling.reasoning import ReasoningMarks
from specruntime.session import Session
from tests.runtime.scripted_draft import (
    HeadsContext,
    PairContext,
    SkippingTarget,
    clean_pairs,
    eagle_spec,
    level_sizes,
    medusa_spec,
    pair_spec,
    skipping_spec,
)
from tests.runtime.scripted_engine import (
    CACHE,
    VOCAB,
    Language,
    ScriptedContext,
    clean_rows,
    reference_decode,
    scripted_manifest,
    target_spec,
)

PROMPT = [5, 9, 2, 40, 7, 11]
TREE = TreeSpec(parents=(0, 0, 0, 1, 1, 2, 4, 4, 6, 7), ranks=(0, 1, 3, 0, 1, 0, 0, 1, 0, 0))
KINDS = ("chain", "tree", "dynamic", "medusa", "layer_skip")
PARAMS = {
    "greedy": SamplingParams(),
    "sampled": SamplingParams(temperature=0.9, seed=5),
    "penalised": SamplingParams(temperature=0.7, top_k=30, repetition_penalty=1.3, seed=8),
    "budgeted": SamplingParams(
        temperature=0.9,
        seed=5,
        thinking_token_budget=6,
        reasoning=ReasoningMarks("<", ">", (17, 23), begun=True),
    ),
}


class Trial:
    """A session that drafts in one of the ways. `drift` is how far the draft's language is from the target's."""

    def __init__(
        self,
        kind: str,
        *,
        drift: float = 0.0,
        forget: int = 0,
        capacity: int = 512,
        constrain: Constrain = unconstrained,
    ) -> None:
        self.language = Language()
        self.pairs: PairContext | None = None
        shallow = Language(drift=drift)
        if kind == "layer_skip":
            self.target: ScriptedContext = SkippingTarget(
                skipping_spec(capacity=capacity, verify=11), self.language, shallow
            )
        else:
            spec = target_spec(verify=(5, 11), capacity=capacity, features=True)
            self.target = ScriptedContext(spec, self.language)
        self.session = Session(
            self.target,
            self._draft(kind, shallow, forget, capacity),
            manifest=scripted_manifest(self.target.spec, NoneDraft()),
            constrain=constrain,
        )

    def _draft(self, kind: str, shallow: Language, forget: int, capacity: int) -> Draft:
        if kind == "layer_skip":
            return LayerSkipProposer(self.target, LayerSkipDraft(k=4, layers=(0,)))
        if kind == "medusa":
            spec = medusa_spec(4, TREE.parents, TREE.ranks)
            context = HeadsContext(spec.graph, shallow, lambda: self.session.tokens.tolist())
            return MedusaProposer(context, spec)
        tree = TREE if kind == "tree" else None
        dynamic = DynamicTree(nodes=10, branch=3) if kind == "dynamic" else None
        levels = level_sizes(TREE.parents) if tree else [(3, 3), (6, 3), (9, 3)] if dynamic else []
        graph = pair_spec(levels, capacity=capacity, laws=True)
        self.pairs = PairContext(graph, shallow, forget=forget)
        return EagleProposer(self.pairs, eagle_spec(4, graph, tree=tree, dynamic=dynamic), vocab_size=VOCAB)

    def begin(self, params: SamplingParams, prompt: list[int] = PROMPT) -> None:
        self.session.append(prompt)
        self.session.begin(params)

    def decode(self, count: int) -> list[int]:
        start = self.session.length
        while self.session.length < start + count:
            self.session.round()
            self.check_caches()
        return [int(token) for token in self.session.tokens[start : start + count]]

    def check_caches(self) -> None:
        tokens = self.session.tokens.tolist()
        kept = self.session.cache_length
        assert np.array_equal(self.target.rows(kept), clean_rows(tokens[:kept]))
        if self.pairs is not None:
            count = self.session._draft.cache_length  # type: ignore[attr-defined]
            rows = self.pairs.cache()[CACHE][0, 0, :count]
            assert count < 1 or np.array_equal(rows, clean_pairs(tokens)[:count])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", PARAMS)
def test_no_kind_of_draft_changes_a_token(kind: str, name: str) -> None:
    trial = Trial(kind, drift=3.0)
    trial.begin(PARAMS[name])
    assert trial.decode(150) == reference_decode(trial.language, PROMPT, 150, PARAMS[name])
    assert 1.05 < trial.session.stats.acceptance_length < 5, "neither dead nor a copy of the target"


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *((kind, "greedy") for kind in KINDS if kind != "dynamic"),
        ("chain", "penalised"),
        ("layer_skip", "penalised"),
    ],
)
def test_a_draft_that_knows_the_target_is_accepted_whole_for_fifty_rounds(kind: str, name: str) -> None:
    """At temperature 0 every kind; above, those that draw from the whole distribution with the target's noise."""
    trial = Trial(kind)
    trial.begin(PARAMS[name])
    trial.session.round()
    for _ in range(50):
        assert trial.session.round().accepted == 4
        trial.check_caches()


def test_a_dynamic_tree_of_a_draft_that_knows_the_target_is_never_refused_whole() -> None:
    trial = Trial("dynamic")
    trial.begin(PARAMS["greedy"])
    trial.session.round()
    depths = [trial.session.round().accepted for _ in range(50)]
    assert min(depths) >= 1 and max(depths) >= 2


@pytest.mark.parametrize("kind", ["chain", "tree", "dynamic"])
def test_a_draft_that_is_always_wrong_changes_no_token(kind: str) -> None:
    trial = Trial(kind, forget=17)
    trial.begin(PARAMS["greedy"])
    assert trial.decode(60) == reference_decode(trial.language, PROMPT, 60, PARAMS["greedy"])
    assert trial.session.stats.acceptance_length < 1.2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_rejection_repeats_itself_and_accepts(kind: str, temperature: float) -> None:
    params = SamplingParams(temperature=temperature, seed=3, accept="rejection")
    answers = []
    for _ in range(2):
        trial = Trial(kind, drift=1.0)
        trial.begin(params)
        answers.append(trial.decode(60))
        assert trial.session.stats.accepted > 0
    assert answers[0] == answers[1]
    other = Trial(kind, drift=1.0)
    other.begin(replace(params, seed=4))
    assert (other.decode(60) == answers[0]) == (temperature == 0)


@pytest.mark.parametrize("kind", KINDS)
def test_the_context_limit_is_reached_exactly_for_every_prompt_length(kind: str) -> None:
    capacity = 26
    for length in range(1, capacity + 1):
        prompt = [int(token) for token in np.random.default_rng(length).integers(0, VOCAB, length)]
        trial = Trial(kind, capacity=capacity)
        trial.begin(PARAMS["greedy"], prompt)
        with pytest.raises(CapacityExceeded):
            while True:
                trial.session.round()
        answer = trial.session.tokens[length:].tolist()
        count = capacity - length + 1
        assert answer == reference_decode(trial.language, prompt, count, PARAMS["greedy"])


@pytest.mark.parametrize("kind", KINDS)
def test_a_cap_is_kept_at_every_position(kind: str) -> None:
    expected = reference_decode(Language(), PROMPT, 12, PARAMS["greedy"])
    for cap in range(1, 12):
        trial = Trial(kind)
        trial.begin(SamplingParams(max_tokens=cap))
        while trial.session.length < len(PROMPT) + cap:
            trial.session.round()
        assert trial.session.tokens[len(PROMPT) :].tolist() == expected[:cap]


@settings(max_examples=40)
@given(
    st.sampled_from(KINDS),
    st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=9)),
            st.tuples(st.just("rewind"), st.integers(0, 40)),
            st.tuples(st.just("rounds"), st.integers(1, 4)),
            st.tuples(st.just("reset"), st.none()),
        ),
        max_size=12,
    ),
)
def test_any_order_of_calls_equals_a_clean_run(kind: str, steps: list[tuple[str, object]]) -> None:
    trial = Trial(kind, drift=2.0, capacity=256)
    session = trial.session
    session.append(PROMPT)
    for step, value in [*steps, ("rounds", 3)]:
        if step == "append":
            assert isinstance(value, list)
            session.append(value)
        elif step == "rewind":
            assert isinstance(value, int)
            session.rewind(min(value, session.length))
        elif step == "reset":
            session.reset()
        if step == "rounds" and isinstance(value, int):
            if session.length == 0:
                session.append(PROMPT)
            before = session.tokens.tolist()
            session.begin(PARAMS["sampled"])
            for _ in range(value):
                session.round()
                trial.check_caches()
            answer = session.tokens[len(before) :].tolist()
            assert answer == reference_decode(trial.language, before, len(answer), PARAMS["sampled"])
