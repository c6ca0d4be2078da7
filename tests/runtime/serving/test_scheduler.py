"""Requests over slots: equal to answers alone, in order, and none lost."""

import numpy as np
import pytest

from specruntime import CapacityExceeded, EmptyPrompt, InvalidArgument, SamplingParams
from specruntime.bundle import LoadedBundle
from specruntime.drafts import ModelDraft
from specruntime.serving import Scheduler, SessionStepper, Work, collect
from tests.runtime.scripted_bundle import ScriptedEngine, scripted_bundle
from tests.runtime.scripted_engine import VOCAB, Language, draft_spec
from tests.runtime.serving.scripted_work import PROMPT, alone, prompts, tokens_of, work


@pytest.mark.parametrize(("slots", "workers"), [(1, 1), (3, 1), (4, 2)])
def test_answers_are_those_of_a_session_alone(
    scripted: tuple[LoadedBundle, ScriptedEngine], slots: int, workers: int
) -> None:
    bundle, _ = scripted
    works = [work(prompt, seed=seed, speculate=seed % 3 > 0) for seed, prompt in enumerate(prompts(24))]
    with Scheduler(SessionStepper(bundle, slots, workers=workers)) as scheduler:
        answers = collect(scheduler, works)
        totals = scheduler.totals
    assert [tokens_of(answer) for answer in answers] == [alone(bundle, asked) for asked in works]
    assert totals.tokens == sum(len(tokens_of(answer)) for answer in answers)
    assert totals.ended["length"] + totals.ended["capacity"] == len(works)


def test_every_token_has_an_author_and_plain_answers_none_of_the_drafts(
    scripted: tuple[LoadedBundle, ScriptedEngine],
) -> None:
    bundle, _ = scripted
    with Scheduler(SessionStepper(bundle, 1)) as scheduler:
        drafted, plain = collect(scheduler, [work(max_tokens=40), work(max_tokens=40, speculate=False)])
        totals = scheduler.totals
    assert all(len(delivery.authors) == len(delivery.delta.tokens) for delivery in drafted)
    authors = [author for delivery in drafted for author in delivery.authors]
    assert {author for delivery in plain for author in delivery.authors} == {"target"}
    assert "accepted" in authors and "correction" in authors
    assert drafted[-1].figures.accepted >= authors.count("accepted")
    assert plain[-1].figures.proposed == 0
    assert totals.acceptance_by_position[0] == totals.accepted_at[0] / totals.drafting_rounds


def test_the_speed_leaves_out_all_that_the_first_delivery_brought() -> None:
    """A draft model proposes after a prompt of one token already, so a first round may deliver several."""
    draft = ModelDraft(k=4, graph=draft_spec())
    bundle, _ = scripted_bundle(draft=draft, language=Language(habit=3.0))
    with Scheduler(SessionStepper(bundle, 1)) as scheduler:
        (answer,) = collect(scheduler, [work((3,), max_tokens=20)])
    figures, first = answer[-1].figures, len(answer[0].delta.tokens)
    assert figures.first_tokens == first > 1
    after = figures.seconds - figures.first_seconds
    assert figures.decode_tokens_per_second == (figures.tokens - first) / after
    bundle.close()


def test_a_long_prompt_is_fed_a_window_a_turn_while_others_decode(
    scripted: tuple[LoadedBundle, ScriptedEngine],
) -> None:
    bundle, _ = scripted
    stepper = SessionStepper(bundle, 2)
    stepper.admit(0, stepper.check(work((1,))))
    assert [turn.slot for turn in stepper.step()] == [0]
    stepper.admit(1, stepper.check(work(tuple(range(30)))))  # windows of 8: 8, 7, 7, 7 and the rest
    steps = 0
    while True:
        turns = {turn.slot: turn for turn in stepper.step()}
        assert set(turns) == {0, 1} and turns[0].delta is not None
        steps += 1
        if turns[1].delta is not None:
            break
    assert steps == 5
    stepper.close()


def test_of_several_prompts_one_is_fed_at_a_time_the_first_first(
    scripted: tuple[LoadedBundle, ScriptedEngine],
) -> None:
    bundle, _ = scripted
    stepper = SessionStepper(bundle, 3)
    for slot in (2, 0, 1):
        stepper.admit(slot, stepper.check(work(tuple(range(10)))))
    fed: list[int] = []
    for _ in range(6):
        fed += [turn.slot for turn in stepper.step() if turn.delta is None or turn.slot not in fed]
    assert list(dict.fromkeys(fed)) == [2, 0, 1]
    stepper.close()


@pytest.mark.parametrize(
    ("prompt", "error"), [((), EmptyPrompt), ((VOCAB,), InvalidArgument), ((1,) * 65, CapacityExceeded)]
)
def test_what_cannot_be_answered_is_refused_at_once(
    scripted: tuple[LoadedBundle, ScriptedEngine], prompt: tuple[int, ...], error: type[Exception]
) -> None:
    bundle, _ = scripted
    with Scheduler(SessionStepper(bundle, 1)) as scheduler, pytest.raises(error):
        scheduler.submit(work(prompt), lambda event: None)
    with Scheduler(SessionStepper(bundle, 1)) as scheduler, pytest.raises(InvalidArgument):
        stop = Work(np.array(PROMPT), SamplingParams(stop=("x",)))
        scheduler.submit(stop, lambda event: None)


def test_a_prompt_that_fills_the_cache_gets_its_one_token(
    scripted: tuple[LoadedBundle, ScriptedEngine],
) -> None:
    bundle, _ = scripted
    asked = work(tuple(index % VOCAB for index in range(64)), max_tokens=None)
    with Scheduler(SessionStepper(bundle, 1)) as scheduler:
        (answer,) = collect(scheduler, [asked])
    assert tokens_of(answer) == alone(bundle, asked)
    assert answer[-1].delta.finish_reason == "capacity"
