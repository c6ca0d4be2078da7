"""The oracles of a speculative loop on a real graph: a tiny random llama through ONNX Runtime."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from specruntime.bundle import LoadedBundle, open_bundle
from specruntime.drafts import Draft, Proposal, Room
from specruntime.drafts.model import ModelProposer
from specruntime.generation import complete
from specruntime.sampling.params import SamplingParams
from specruntime.sampling.sampler import Sampler
from specruntime.session import Session

PROMPT = [int(token) for token in np.random.default_rng(3).integers(3, 250, 23)]
OPTIONS = {
    "greedy": SamplingParams(ignore_eos=True),
    "sampled": SamplingParams(temperature=0.8, top_p=0.9, seed=4, ignore_eos=True),
    "penalties": SamplingParams(
        temperature=0.7, top_k=30, min_p=0.01, repetition_penalty=1.2, frequency_penalty=0.3, presence_penalty=0.2,
        logit_bias={5: 1.0, 6: float("-inf")}, min_tokens=40, seed=9, ignore_eos=True,
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def bundle(tiny_bundle: Path) -> Iterator[LoadedBundle]:
    with open_bundle(tiny_bundle) as bundle:
        yield bundle


class FixedDraft(Draft):
    """Proposes from a known answer; `wrong` shifts every id by one."""

    def __init__(self, answer: list[int], k: int, wrong: bool) -> None:
        super().__init__(k)
        self._answer = answer
        self._shift = int(wrong)

    def propose(self, tokens: NDArray[np.int64], room: Room, sampler: Sampler) -> Proposal:
        start = len(tokens) - len(PROMPT)
        ids = self._answer[start : start + min(room.depth, room.nodes, self.k)]
        return Proposal((np.array(ids, dtype=np.int64) + self._shift) % 259)


def decode(session: Session, params: SamplingParams, count: int) -> list[int]:
    session.append(PROMPT)
    session.begin(params)
    while session.length < len(PROMPT) + count:
        session.round()
    return [int(token) for token in session.tokens[len(PROMPT) : len(PROMPT) + count]]


@pytest.fixture(scope="module")
def plain(bundle: LoadedBundle) -> dict[str, list[int]]:
    return {
        name: decode(bundle.new_session(speculate=False), params, 220) for name, params in OPTIONS.items()
    }


@pytest.mark.parametrize("name", OPTIONS)
def test_a_draft_model_changes_no_token(bundle: LoadedBundle, plain: dict[str, list[int]], name: str) -> None:
    session = bundle.new_session()
    assert decode(session, OPTIONS[name], 220) == plain[name]
    assert 1.0 < session.stats.acceptance_length < 5.0, "neither dead nor a copy of the target"


@pytest.mark.parametrize("name", OPTIONS)
def test_a_draft_that_is_always_wrong_changes_no_token(
    bundle: LoadedBundle, plain: dict[str, list[int]], name: str
) -> None:
    session = bundle.new_session(adapt=_replaced(FixedDraft(plain[name], 4, wrong=True)))
    assert decode(session, OPTIONS[name], 200) == plain[name][:200]
    assert session.stats.accepted == 0
    assert session.stats.proposed > 700


def test_a_draft_that_knows_the_answer_is_always_accepted(
    bundle: LoadedBundle, plain: dict[str, list[int]]
) -> None:
    session = bundle.new_session(adapt=_replaced(FixedDraft(plain["greedy"], 4, wrong=False)))
    assert decode(session, OPTIONS["greedy"], 200) == plain["greedy"][:200]
    assert session.stats.acceptance_length == 5.0


@pytest.mark.parametrize("k", [1, 2, 4])
def test_the_target_as_its_own_draft_is_always_accepted(bundle: LoadedBundle, k: int) -> None:
    """The target's own graph drafts (it has no catch-up window, so it catches up in a wider one)."""
    with open_bundle(bundle.root) as other:
        draft = ModelProposer(other._target.new_context(), k=k)
        session = bundle.new_session(adapt=_replaced(draft))
        session.append(PROMPT)
        session.begin(OPTIONS["greedy"])
        session.round()
        for _ in range(220 // (k + 1)):
            round = session.round()
            assert round.accepted == round.proposed == min(k, round.proposed)
        session.close()


def test_committed_cache_rows_are_those_of_a_clean_prefill(bundle: LoadedBundle) -> None:
    session = bundle.new_session()
    session.append(PROMPT)
    session.begin(OPTIONS["greedy"])
    for _ in range(30):
        session.round()
        clean = bundle.new_session(speculate=False)
        clean.append(session.tokens[: session.cache_length])
        clean.begin(OPTIONS["greedy"])
        clean.round()
        assert clean.cache_length == session.cache_length
        expected = clean._feeder.context.cache()
        for name, rows in session._feeder.context.cache().items():
            used = np.s_[:, :, : session.cache_length]
            difference = rows[used].astype(np.float32) - expected[name][used].astype(np.float32)
            assert np.abs(difference).max() < 1e-4, name
        clean.close()


def test_the_context_limit_is_reached_exactly_for_every_prompt_length(bundle: LoadedBundle) -> None:
    capacity = bundle.manifest.target.capacity
    ids = [int(token) for token in np.random.default_rng(1).integers(3, 250, capacity)]
    speculative, alone = bundle.new_session(), bundle.new_session(speculate=False)
    for length in [*range(capacity - 12, capacity), capacity]:
        answers = []
        for session in (speculative, alone):
            session.reset()
            answers.append(complete(session, ids[:length], SamplingParams(ignore_eos=True)))
        assert answers[0].token_ids == answers[1].token_ids
        assert answers[0].finish_reason == answers[1].finish_reason == "capacity"
        assert len(answers[0].token_ids) == capacity - length + 1


def test_a_second_turn_feeds_only_its_new_tokens(bundle: LoadedBundle) -> None:
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    session = bundle.new_session()
    first = complete(session, PROMPT, params)
    second = complete(session, [7, 8, 9], params)
    fed = session.stats.target.calls
    assert "prefill_32" not in fed, "the first turn is still in the cache"
    clean = bundle.new_session(speculate=False)
    assert complete(clean, [*PROMPT, *first.token_ids, 7, 8, 9], params).token_ids == second.token_ids


def test_stops_and_caps_cut_where_plain_decoding_cuts(
    bundle: LoadedBundle, plain: dict[str, list[int]]
) -> None:
    answer = plain["greedy"]
    session = bundle.new_session(adapt=_replaced(FixedDraft(answer, 4, wrong=False)))
    for stop_at in range(1, 16):
        token = answer[stop_at]
        first = answer.index(token)
        for cap in range(1, 16):
            session.reset()
            found = complete(
                session, PROMPT, SamplingParams(stop_token_ids=(token,), max_tokens=cap, ignore_eos=True)
            )
            expected = answer[: min(first + 1, cap)]
            assert list(found.token_ids) == expected
            assert found.finish_reason == ("stop" if first < cap else "length")
            assert session.tokens.tolist() == [*PROMPT, *expected]


def test_logprobs_are_those_of_a_teacher_forced_pass(bundle: LoadedBundle) -> None:
    params = SamplingParams(temperature=0.9, seed=2, logprobs=3, max_tokens=40, ignore_eos=True)
    found = complete(bundle.new_session(), PROMPT, params)
    assert found.logprobs is not None
    text = [*PROMPT, *found.token_ids]
    forced = bundle.new_session(speculate=False)
    for index, entry in enumerate(found.logprobs):
        forced.rewind(0)
        forced.append(text[: len(PROMPT) + index])
        forced.begin(SamplingParams(logprobs=3, logit_bias={found.token_ids[index]: 1000.0}))
        expected = forced.round().logprobs
        assert expected is not None
        assert entry.token == expected[0].token == found.token_ids[index]
        assert entry.logprob == pytest.approx(expected[0].logprob, abs=1e-4)
        assert [token for token, _ in entry.top] == [token for token, _ in expected[0].top]


def _replaced(draft: Draft):  # type: ignore[no-untyped-def]
    """An `adapt` that closes the bundle's own draft and uses `draft`."""

    def adapt(own: Draft) -> Draft:
        own.close()
        return draft

    return adapt
