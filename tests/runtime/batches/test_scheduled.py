"""A scheduler over batches: a row that fails, leaves or brings a long prompt does not change the others."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from specruntime import EngineFailed, SamplingParams, complete
from specruntime.bundle import LoadedBundle
from specruntime.drafts import Proposal
from specruntime.drafts.wrappers import DraftSwitch
from specruntime.serving import BatchStepper, Cancelled, Delivery, Scheduler, Stream, Work
from tests.runtime.scripted_bundle import scripted_bundle
from tests.runtime.scripted_engine import Language
from tests.runtime.stacked_batch import StackedBatch
from tests.scripted_clock import CLOCK

LANES = 4
PROMPTS = ((3, 5, 3, 5, 3), (1, 2), (7, 8, 9, 7, 8), (4,))
PARAMS = SamplingParams(max_tokens=24)


@pytest.fixture
def bundle() -> Iterator[LoadedBundle]:
    opened, _ = scripted_bundle(language=Language(habit=3.0), batch=LANES)
    yield opened
    opened.close()


def work(prompt: tuple[int, ...], params: SamplingParams = PARAMS) -> Work:
    return Work(np.array(prompt), params)


def tokens_of(deliveries: list[Delivery]) -> list[int]:
    return [token for delivery in deliveries for token in delivery.delta.tokens]


def alone(bundle: LoadedBundle) -> list[list[int]]:
    answers = []
    for prompt in PROMPTS:
        session = bundle.new_session(speculate=False)
        answers.append(list(complete(session, prompt, PARAMS).token_ids))
        session.close()
    return answers


def lane(stepper: BatchStepper, number: int) -> Any:
    """The scripted context of one slot."""
    context = stepper.batches[0].target.context
    assert isinstance(context, StackedBatch)
    return context.contexts[number]


def test_a_launch_that_fails_in_mid_round_ends_its_answers_and_the_slots_heal(bundle: LoadedBundle) -> None:
    """A failed launch may have written into the caches of all that it covered: these answers end, and no other."""
    expected = alone(bundle)
    stepper = BatchStepper(bundle, LANES)
    runs: list[None] = []

    def fail_once() -> bool:
        runs.append(None)
        return len(runs) == 6

    lane(stepper, 1).failing = fail_once
    with Scheduler(stepper) as scheduler:
        streams = [Stream(scheduler, work(prompt)) for prompt in PROMPTS]
        ended: list[list[int] | None] = []
        for stream in streams:
            try:
                ended.append(tokens_of(list(stream)))
            except EngineFailed:
                ended.append(None)
        assert ended[1] is None
        assert all(found is None or found == whole for found, whole in zip(ended, expected, strict=True))
        again = [Stream(scheduler, work(prompt)) for prompt in PROMPTS]
        assert [tokens_of(list(stream)) for stream in again] == expected
        assert scheduler.occupancy().slots == LANES
    assert scheduler.totals.slot_failures == ended.count(None)


def test_time_in_which_a_row_waits_for_others_is_no_phase_of_it(
    bundle: LoadedBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    propose = DraftSwitch.propose

    def slow(*given: Any) -> Proposal:
        CLOCK.advance(2.0)
        return propose(*given)

    monkeypatch.setattr(DraftSwitch, "propose", slow)
    started = CLOCK()
    with Scheduler(BatchStepper(bundle, LANES, speculate_up_to=LANES)) as scheduler:
        streams = [Stream(scheduler, work(prompt)) for prompt in PROMPTS]
        assert all(list(stream)[-1].last for stream in streams)
    spent = scheduler.totals.seconds
    assert spent.draft > 20.0
    assert spent.draft + spent.prefill < CLOCK() - started
    assert spent.other < 1.0, "the drafts of three neighbours"


def test_a_row_that_is_cancelled_frees_its_slot_and_changes_no_neighbour(bundle: LoadedBundle) -> None:
    expected = alone(bundle)
    with Scheduler(BatchStepper(bundle, LANES)) as scheduler:
        streams = [Stream(scheduler, work(prompt)) for prompt in PROMPTS[1:]]
        left = Stream(scheduler, work(PROMPTS[0], SamplingParams()))
        next(left)
        left.ticket.cancel()
        with pytest.raises(Cancelled):
            list(left)
        assert [tokens_of(list(stream)) for stream in streams] == expected[1:]
        assert tokens_of(list(Stream(scheduler, work(PROMPTS[0])))) == expected[0]


def test_a_long_prompt_is_fed_a_window_a_step_while_the_others_decode(bundle: LoadedBundle) -> None:
    stepper = BatchStepper(bundle, LANES, speculate_up_to=0)
    for slot in (0, 1, 2):
        stepper.admit(slot, stepper.check(work(PROMPTS[slot], SamplingParams())))
        list(stepper.step())
    stepper.admit(3, stepper.check(work(tuple(range(30)))))  # windows of 8: 8, 7, 7, 7 and the rest
    steps = 0
    while True:
        turns = {turn.slot: turn for turn in stepper.step()}
        assert set(turns) == {0, 1, 2, 3}
        assert all(turns[slot].delta is not None for slot in (0, 1, 2)), "no other slot waits for the prompt"
        steps += 1
        if turns[3].delta is not None:
            break
    assert steps == 5
    stepper.close()
