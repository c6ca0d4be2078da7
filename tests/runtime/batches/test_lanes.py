"""A batch is equal to sessions alone, token by token, whatever joins, leaves, fails or is sampled in other rows."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specruntime import InvalidArgument, SamplingParams, complete
from specruntime.bundle import LoadedBundle
from specruntime.drafts import DraftSpec, ModelDraft, NoneDraft
from specruntime.errors import EngineFailed
from specruntime.serving import BatchStepper, SessionStepper, Turn, Work, stepper_for
from specruntime.trace import RoundTrace
from tests.runtime.scripted_bundle import NGRAM, scripted_bundle
from tests.runtime.scripted_engine import VOCAB, Language, draft_spec
from tests.runtime.stacked_batch import StackedBatch

LANES = 4
KINDS: dict[str, DraftSpec] = {
    "none": NoneDraft(),
    "ngram": NGRAM,
    "model": ModelDraft(k=4, graph=draft_spec(batch=LANES)),
}


def opened(kind: str = "ngram", *, capacity: int = 64, batch: int = LANES) -> LoadedBundle:
    return scripted_bundle(draft=KINDS[kind], language=Language(habit=3.0), capacity=capacity, batch=batch)[0]


@dataclass(frozen=True)
class Asked:
    """A request that joins at a step and, where `leaves` is set, is evicted that many steps later."""

    work: Work
    joins: int
    leaves: int | None


@st.composite
def requests(draw: st.DrawFn) -> list[Asked]:
    found = []
    for _ in range(draw(st.integers(1, 7))):
        prompt = draw(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=40))
        temperature = draw(st.sampled_from([0.0, 0.0, 0.8]))
        params = SamplingParams(
            temperature=temperature,
            seed=draw(st.integers(0, 99)),
            max_tokens=draw(st.integers(1, 30)),
            accept=draw(st.sampled_from(["match", "rejection"])) if temperature else "match",
        )
        work = Work(np.array(prompt), params, draw(st.booleans()))
        found.append(Asked(work, draw(st.integers(0, 6)), draw(st.none() | st.integers(1, 4))))
    return found


def serve(stepper: SessionStepper, asked: list[Asked]) -> list[list[int]]:
    """The tokens of each request; those that leave early have the beginning of theirs."""
    free, waiting = list(range(stepper.slots)), sorted(range(len(asked)), key=lambda i: asked[i].joins)
    active: dict[int, tuple[int, int]] = {}  # slot: request, step it joined at
    tokens: list[list[int]] = [[] for _ in asked]
    step = 0
    while waiting or active:
        while waiting and free and asked[waiting[0]].joins <= step:
            request, slot = waiting.pop(0), free.pop(0)
            stepper.admit(slot, stepper.check(asked[request].work))
            active[slot] = request, step
        turns: list[Turn] = list(stepper.step())
        assert len({turn.slot for turn in turns}) == len(turns)
        for turn in turns:
            assert turn.error is None, turn.error
            if turn.delta is not None:
                tokens[active[turn.slot][0]] += turn.delta.tokens
        ended = {turn.slot for turn in turns if turn.delta is not None and turn.delta.finish_reason}
        for slot, (request, joined) in list(active.items()):
            leaves = asked[request].leaves
            if slot in ended or (leaves is not None and step - joined >= leaves):
                stepper.evict(slot)
                del active[slot]
                free = sorted([*free, slot])
        step += 1
    return tokens


def alone(bundle: LoadedBundle, work: Work) -> list[int]:
    session = bundle.new_session(speculate=work.speculate)
    answer = complete(session, work.prompt, work.params)
    session.close()
    return list(answer.token_ids)


@pytest.mark.parametrize("kind", KINDS)
@given(asked=requests())
def test_rows_that_join_and_leave_get_what_they_get_alone(kind: str, asked: list[Asked]) -> None:
    with opened(kind) as bundle:
        stepper = stepper_for(bundle, LANES)
        assert isinstance(stepper, BatchStepper)
        for one, tokens in zip(asked, serve(stepper, asked), strict=True):
            expected = alone(bundle, one.work)
            assert tokens == (expected if one.leaves is None else expected[: len(tokens)])
        stepper.close()


@pytest.mark.parametrize("kind", KINDS)
def test_several_rows_are_one_launch(kind: str) -> None:
    with opened(kind) as bundle, bundle.new_batch(LANES) as batch:
        for number, session in enumerate(batch.sessions):
            session.append([5, 6, 7, number])
            session.begin(SamplingParams(max_tokens=20))
            session.round()
        before = batch.target.launches
        rounds = dict(batch.turns({number: session.round for number, session in enumerate(batch.sessions)}))
        assert len(rounds) == LANES
        assert batch.target.launches == before + 1, "chains and plain steps are verified together"


def test_each_session_of_a_batch_has_a_trace_of_its_own() -> None:
    records: dict[int, list[RoundTrace]] = {number: [] for number in range(2)}
    with opened() as bundle, bundle.new_batch(2, trace=lambda number: records[number].append) as batch:
        emitted: dict[int, list[int]] = {0: [], 1: []}
        for number, session in enumerate(batch.sessions):
            session.append([5, 6, 7, number])
            session.begin(SamplingParams(max_tokens=20))
        for _ in range(4):
            for number, found in batch.turns({n: each.round for n, each in enumerate(batch.sessions)}):
                emitted[number] += found.tokens
    for number, rounds in records.items():
        assert [token for one in rounds for token in one.tokens] == emitted[number] != []


def test_poisoned_neighbours_change_nothing() -> None:
    with opened() as bundle, bundle.new_batch(LANES) as batch:
        prompt, params = [3, 5, 3, 5, 3, 9], SamplingParams(max_tokens=24)
        expected = alone(bundle, Work(np.array(prompt), params))
        session = batch.sessions[1]
        session.append(prompt)
        session.begin(params)
        context = batch.target.context
        assert isinstance(context, StackedBatch)
        while session.length < len(prompt) + len(expected):
            for row in (0, 2, 3):
                context.contexts[row].cache()["past_key.0"].fill(np.nan)
            dict(batch.turns({1: session.round}))
        assert session.tokens[len(prompt) :].tolist() == expected


def test_a_failure_ends_the_rows_of_its_launch_and_no_other() -> None:
    with opened("none") as bundle, bundle.new_batch(LANES) as batch:
        context = batch.target.context
        assert isinstance(context, StackedBatch)
        for session in batch.sessions:
            session.append([1, 2, 3])
            session.begin(SamplingParams(max_tokens=9))
        context.contexts[1].failing = lambda: True  # type: ignore[attr-defined]
        with pytest.raises(EngineFailed, match="scripted failure"):
            list(batch.turns({number: batch.sessions[number].round for number in (0, 1)}))
        assert [session.poisoned for session in batch.sessions] == [True, True, False, False]
        context.contexts[1].failing = lambda: False  # type: ignore[attr-defined]
        done = dict(batch.turns({number: batch.sessions[number].round for number in (2, 3)}))
        assert done[2].tokens == done[3].tokens
        for session in batch.sessions[:2]:
            session.reset()
            session.append([1, 2, 3])
            session.begin(SamplingParams(max_tokens=9))
        again = dict(batch.turns({number: batch.sessions[number].round for number in (0, 1)}))
        assert again[0].tokens == again[1].tokens == done[2].tokens


def test_turns_that_nobody_asks_for_end_all_the_same() -> None:
    with opened() as bundle, bundle.new_batch(LANES) as batch:
        for session in batch.sessions:
            session.append([1, 2, 3])
            session.begin(SamplingParams(max_tokens=9))
        turns = batch.turns({number: session.round for number, session in enumerate(batch.sessions)})
        next(turns)
        turns.close()  # type: ignore[attr-defined]
        assert [session.length for session in batch.sessions] == [4] * LANES
        assert len(dict(batch.turns({0: batch.sessions[0].round}))) == 1


def test_more_than_was_compiled_is_refused_by_the_recipe_key() -> None:
    with opened() as bundle, pytest.raises(InvalidArgument, match=r"batch of 5.*1, 2, 4.*`batch`"):
        bundle.new_batch(5)


@pytest.fixture
def many() -> Iterator[LoadedBundle]:
    with opened(batch=2) as bundle:
        yield bundle


def test_more_slots_than_a_batch_holds_are_several_batches(many: LoadedBundle) -> None:
    stepper = BatchStepper(many, 5)
    assert [len(batch.sessions) for batch in stepper.batches] == [2, 2, 1]
    asked = [Asked(Work(np.array([n, 4, n, 4]), SamplingParams(max_tokens=8)), 0, None) for n in range(5)]
    assert serve(stepper, asked) == [alone(many, one.work) for one in asked]
    stepper.close()
