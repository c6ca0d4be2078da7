"""The oracles of every way to draft on real graphs: tiny random models through ONNX Runtime.

A draft of random weights is right now and then, so both outcomes of a judgement are met; drafts that know the answer
stand in for trained ones where acceptance matters.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from numpy.typing import NDArray
from transformers import AutoTokenizer

from specexport.build import build
from specexport.checkpoints.loading import load_checkpoint
from specexport.recipe.schema import load_recipe
from specruntime.bundle import LoadedBundle, open_bundle
from specruntime.drafts import Draft, Proposal, Room
from specruntime.drafts.eagle import EagleProposer
from specruntime.generation import complete
from specruntime.sampling.params import SamplingParams
from specruntime.sampling.sampler import Sampler
from specruntime.session import Session
from tests.conftest import RECIPES
from tests.e2e.conftest import CAPACITY, DRAFT_KINDS, Opened

ANSWER = 260
PROMPT = [int(token) for token in np.random.default_rng(3).integers(3, 250, 23)]
TREES = ("eagle3-tree", "eagle3-dynamic", "medusa")
GREEDY = SamplingParams(ignore_eos=True)
OPTIONS = {
    "greedy": GREEDY,
    "sampled": SamplingParams(temperature=0.8, top_p=0.9, seed=4, ignore_eos=True),
    "penalties": SamplingParams(
        temperature=0.7, top_k=30, min_p=0.01, repetition_penalty=1.2, frequency_penalty=0.3, presence_penalty=0.2,
        logit_bias={5: 1.0, 6: float("-inf")}, min_tokens=40, seed=9, ignore_eos=True,
    ),
}  # fmt: skip


@pytest.fixture(params=DRAFT_KINDS)
def bundle(request: pytest.FixtureRequest, opened: Opened) -> LoadedBundle:
    return opened(request.param)


@pytest.fixture(params=TREES)
def tree_bundle(request: pytest.FixtureRequest, opened: Opened) -> LoadedBundle:
    return opened(request.param)


@pytest.fixture(scope="module")
def plain(opened: Opened) -> dict[str, list[int]]:
    """Answers without a draft; every recipe here has the same target."""
    session = opened(DRAFT_KINDS[0]).new_session(speculate=False)
    return {name: decode(session, params, ANSWER) for name, params in OPTIONS.items()}


def decode(session: Session, params: SamplingParams, count: int) -> list[int]:
    session.reset()
    session.append(PROMPT)
    session.begin(params)
    while session.length < len(PROMPT) + count:
        session.round()
    return [int(token) for token in session.tokens[len(PROMPT) : len(PROMPT) + count]]


@pytest.mark.parametrize("name", OPTIONS)
def test_no_draft_changes_a_token(bundle: LoadedBundle, plain: dict[str, list[int]], name: str) -> None:
    session = bundle.new_session()
    assert decode(session, OPTIONS[name], ANSWER) == plain[name]
    stats = session.stats
    assert stats.proposed > stats.rounds and stats.accepted <= stats.evaluated <= stats.proposed
    assert stats.accepted < stats.evaluated, "not a copy of the target"
    # Greedy answers settle into loops, in which random drafts may never be right; sampled ones do not.
    assert stats.accepted > 0 or name == "greedy", "not dead"


@pytest.mark.parametrize("name", ["greedy", "sampled"])
def test_both_caches_are_those_of_a_clean_run(bundle: LoadedBundle, name: str) -> None:
    """Also after rounds that moved rows together: what is committed is a prefill's, in target and draft."""
    session, clean = bundle.new_session(), bundle.new_session()
    session.append(PROMPT)
    session.begin(OPTIONS[name])
    for _ in range(12):
        session.round()
        clean.reset()
        clean.append(session.tokens)
        clean.begin(GREEDY)
        clean.round()
        clean.round()  # its draft has caught up with the prompt by now
        compare_rows(target_rows(session), target_rows(clean), session.cache_length)
        pairs = getattr(session._draft, "cache_length", 0)
        if pairs:
            assert pairs in range(session.length - 6, session.length)
            compare_rows(draft_rows(session), draft_rows(clean), pairs)


def target_rows(session: Session) -> dict[str, NDArray[np.generic]]:
    return session._feeder.context.cache()


def draft_rows(session: Session) -> dict[str, NDArray[np.generic]]:
    assert isinstance(session._draft, EagleProposer)
    return session._draft._feeder.context.cache()


def compare_rows(
    found: dict[str, NDArray[np.generic]], expected: dict[str, NDArray[np.generic]], count: int
) -> None:
    assert found.keys() == expected.keys() and found
    used = np.s_[:, :, :count]
    for name, rows in found.items():
        difference = rows[used].astype(np.float32) - expected[name][used].astype(np.float32)
        assert np.abs(difference).max() < 1e-4, name
        assert rows[used].any(axis=(0, 1, 3)).all(), "rows were written"


def test_what_lies_behind_the_rows_in_use_changes_nothing(
    bundle: LoadedBundle, plain: dict[str, list[int]]
) -> None:
    accepted = []
    for poison in (0.0, 1e4, -1e4):
        session = bundle.new_session()
        session.append(PROMPT)
        session.begin(GREEDY)
        found = []
        while session.length < len(PROMPT) + 60:
            for rows in target_rows(session).values():
                rows[:, :, session.cache_length :] = poison
            if isinstance(session._draft, EagleProposer):
                for rows in draft_rows(session).values():
                    rows[:, :, session._draft.cache_length :] = poison
            found.append(session.round().accepted)
        assert session.tokens[len(PROMPT) :][:60].tolist() == plain["greedy"][:60]
        accepted.append(found)
    assert accepted[0] == accepted[1] == accepted[2]


def test_fresh_sessions_side_by_side_do_not_meet(bundle: LoadedBundle, plain: dict[str, list[int]]) -> None:
    """Four sessions a round each in turn, two ways of sampling: each equals a session that is alone."""
    names = ["greedy", "sampled", "greedy", "sampled"]
    sessions = [bundle.new_session() for _ in names]
    for session, name in zip(sessions, names, strict=True):
        session.append(PROMPT)
        session.begin(OPTIONS[name])
    accepted: list[list[int]] = [[] for _ in names]
    for _ in range(40):
        for session, found in zip(sessions, accepted, strict=True):
            found.append(session.round().accepted)
    assert accepted[0] == accepted[2] and accepted[1] == accepted[3]
    for session, name in zip(sessions, names, strict=True):
        assert session.tokens[len(PROMPT) :].tolist() == plain[name][: session.length - len(PROMPT)]


def test_rejection_repeats_itself_and_accepts(bundle: LoadedBundle) -> None:
    params = SamplingParams(temperature=0.8, seed=4, accept="rejection", ignore_eos=True)
    session = bundle.new_session()
    first = decode(session, params, 120)
    assert 0 < session.stats.accepted < session.stats.evaluated
    assert decode(session, params, 120) == first
    assert decode(session, replace(params, seed=5), 120) != first


def test_rejection_draws_from_whole_laws_where_the_bundle_has_them(
    opened: Opened,
) -> None:
    params = SamplingParams(temperature=0.8, seed=4, accept="rejection", ignore_eos=True)
    drawn = {"eagle3": {"step_law"}, "eagle3-tree": {"level_1_law", "level_2_law"}, "eagle3-dynamic": set()}
    for kind, expected in drawn.items():
        session = opened(kind).new_session()
        decode(session, params, 30)
        calls = session.stats.draft.calls
        assert expected <= calls.keys(), kind
        assert any(name.endswith("_law") for name in calls) == bool(expected), kind


def test_the_context_limit_is_reached_exactly(bundle: LoadedBundle) -> None:
    ids = [int(token) for token in np.random.default_rng(1).integers(3, 250, CAPACITY)]
    speculative, alone = bundle.new_session(), bundle.new_session(speculate=False)
    for length in (*range(CAPACITY - 11, CAPACITY, 2), CAPACITY - 2, CAPACITY):
        answers = []
        for session in (speculative, alone):
            session.reset()
            answers.append(complete(session, ids[:length], GREEDY))
        assert answers[0].token_ids == answers[1].token_ids
        assert answers[0].finish_reason == answers[1].finish_reason == "capacity"


def test_turns_and_rewinds_leave_nothing_behind(bundle: LoadedBundle) -> None:
    params = replace(OPTIONS["sampled"], max_tokens=12)
    session, clean = bundle.new_session(), bundle.new_session(speculate=False)
    draws = np.random.default_rng(7)
    for turn in range(10):
        if session.length > 60 or turn == 5:
            session.rewind(int(draws.integers(1, session.length)))
        more = [int(token) for token in draws.integers(3, 250, draws.integers(1, 20))]
        before = [*session.tokens.tolist(), *more]
        answer = complete(session, more, params)
        clean.reset()
        assert complete(clean, before, params).token_ids == answer.token_ids


class KnowingTree(Draft):
    """A tree in which the known answer is one path, its rows apart, among tokens that are wrong.

    Rows by depth: 1 wrong, 2 right; 3 right, 4 wrong; 5 wrong, 6 right. `wrong` makes every token wrong.
    """

    def __init__(self, answer: list[int], *, wrong: bool = False) -> None:
        super().__init__(3)
        self._answer, self._wrong = answer, wrong

    def propose(self, tokens: NDArray[np.int64], room: Room, sampler: Sampler) -> Proposal:
        start = len(tokens) - len(PROMPT)
        ids: list[int] = []
        for depth in range(min(room.depth, room.nodes // 2, self.k, len(self._answer) - start)):
            right = self._answer[start + depth]
            pair = [(right + 1) % 259, (right + 2) % 259 if self._wrong else right]
            ids += reversed(pair) if depth == 1 else pair
        parents = np.array([0, 0, 2, 2, 3, 3])[: len(ids)]
        return Proposal(np.array(ids, np.int64), None, parents)


def knowing(bundle: LoadedBundle, draft: Draft) -> Session:
    def adapt(own: Draft) -> Draft:
        own.close()
        return draft

    return bundle.new_session(adapt=adapt)


@pytest.mark.parametrize("name", OPTIONS)
def test_a_tree_that_knows_the_answer_is_accepted_whole(
    tree_bundle: LoadedBundle, plain: dict[str, list[int]], name: str
) -> None:
    session = knowing(tree_bundle, KnowingTree(plain[name]))
    assert decode(session, OPTIONS[name], 240) == plain[name][:240]
    assert session.stats.acceptance_length == 4.0
    clean = tree_bundle.new_session(speculate=False)
    clean.append(session.tokens[: session.cache_length])
    clean.begin(GREEDY)
    clean.round()
    compare_rows(target_rows(session), target_rows(clean), session.cache_length)


def test_a_tree_that_is_always_wrong_changes_no_token(
    tree_bundle: LoadedBundle, plain: dict[str, list[int]]
) -> None:
    session = knowing(tree_bundle, KnowingTree(plain["greedy"], wrong=True))
    assert decode(session, GREEDY, 100) == plain["greedy"][:100]
    assert session.stats.accepted == 0 and session.stats.proposed == 6 * session.stats.rounds


def test_stops_and_caps_cut_accepted_paths_where_plain_decoding_cuts(
    tree_bundle: LoadedBundle, plain: dict[str, list[int]]
) -> None:
    answer = plain["greedy"]
    session = knowing(tree_bundle, KnowingTree(answer))
    for stop_at in range(1, 12):
        token = answer[stop_at]
        first = answer.index(token)
        for cap in range(1, 12):
            session.reset()
            params = SamplingParams(stop_token_ids=(token,), max_tokens=cap, ignore_eos=True)
            found = complete(session, PROMPT, params)
            expected = answer[: min(first + 1, cap)]
            assert list(found.token_ids) == expected
            assert found.finish_reason == ("stop" if first < cap else "length")
            assert session.tokens.tolist() == [*PROMPT, *expected]


def test_logprobs_along_a_path_are_those_of_plain_decoding(
    tree_bundle: LoadedBundle, plain: dict[str, list[int]]
) -> None:
    params = SamplingParams(logprobs=3, max_tokens=40, ignore_eos=True)
    found = complete(knowing(tree_bundle, KnowingTree(plain["greedy"])), PROMPT, params)
    expected = complete(tree_bundle.new_session(speculate=False), PROMPT, params)
    assert found.token_ids == expected.token_ids
    assert found.logprobs is not None and expected.logprobs is not None
    for entry, other in zip(found.logprobs, expected.logprobs, strict=True):
        assert entry.token == other.token and entry.logprob == pytest.approx(other.logprob, abs=1e-4)


def idle_layer_recipe(place: Path) -> Path:
    """The layer-skip recipe over a checkpoint whose skipped layer adds nothing to the residual stream."""
    made = yaml.safe_load((RECIPES / "tiny-layer-skip.yaml").read_text())
    kept = made["draft"]["layers"]
    checkpoint = load_checkpoint(load_recipe(RECIPES / "tiny-layer-skip.yaml").target, "fp32")
    layers = checkpoint.model.model.layers
    for index in set(range(len(layers))) - set(kept):
        layers[index].self_attn.o_proj.weight.data.zero_()
        layers[index].mlp.down_proj.weight.data.zero_()
    checkpoint.model.save_pretrained(place / "saved")
    AutoTokenizer.from_pretrained(checkpoint.tokenizer).save_pretrained(place / "saved")
    made["target"]["source"], made["capacity"] = "./saved", CAPACITY
    (place / "recipe.yaml").write_text(yaml.safe_dump(made))
    return place / "recipe.yaml"


def test_skipping_a_layer_that_does_nothing_is_always_right(tmp_path: Path) -> None:
    """The path through the kept layers is the target itself then: any slip of its cache rows would show."""
    recipe = load_recipe(idle_layer_recipe(tmp_path))
    with open_bundle(build(recipe, tmp_path / "bundle")) as bundle:
        session = bundle.new_session()
        for name in OPTIONS:
            session.reset()
            session.append(PROMPT)
            session.begin(OPTIONS[name])
            session.round()
            for k in (1, 2, 3) * 17:
                session._draft.k = k
                assert session.round().accepted == k
