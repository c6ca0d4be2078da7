"""What fails ends the answers it touches and no other, and its slot heals or is given up."""

from collections.abc import Callable, Iterator

import pytest

from specruntime import EngineFailed, InvalidArgument
from specruntime.bundle import LoadedBundle
from specruntime.serving import (
    BatchStepper,
    Draining,
    Event,
    Failure,
    Scheduler,
    SessionStepper,
    Stream,
    Turn,
)
from tests.runtime.scripted_bundle import ScriptedEngine, scripted_bundle
from tests.runtime.scripted_engine import Language
from tests.runtime.serving.scripted_work import Gate, alone, tokens_of, wait_for, work


def test_an_engine_failure_ends_one_answer_and_the_slot_heals(
    scripted: tuple[LoadedBundle, ScriptedEngine],
) -> None:
    bundle, engine = scripted
    runs = {0: 0, 1: 0}

    def fail_once(context: int) -> bool:
        if context in runs:
            runs[context] += 1
        return context == 0 and runs[0] == 3

    expected = alone(bundle, work(max_tokens=20))
    stepper = SessionStepper(bundle, 2)
    engine.failing = lambda context: fail_once(context - 1)  # the first context was the answer alone
    with Scheduler(stepper) as scheduler:
        streams = [Stream(scheduler, work(max_tokens=20)) for _ in range(2)]
        with pytest.raises(EngineFailed, match="scripted failure"):
            list(streams[0])
        assert tokens_of(list(streams[1])) == expected
        again = [Stream(scheduler, work(max_tokens=20)) for _ in range(2)]
        assert [tokens_of(list(stream)) for stream in again] == [expected, expected]
    assert scheduler.totals.slot_failures == 1


def test_a_slot_that_cannot_be_emptied_is_given_up_and_the_last_one_stops_the_scheduler(
    scripted: tuple[LoadedBundle, ScriptedEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, engine = scripted
    stepper = SessionStepper(bundle, 1)
    gate = Gate(engine)
    with Scheduler(stepper) as scheduler:
        first = Stream(scheduler, work())
        wait_for(lambda: gate.runs > 0)
        waiting = Stream(scheduler, work())

        def broken(slot: int) -> None:
            raise RuntimeError("no memory for another session")

        monkeypatch.setattr(stepper, "evict", broken)
        gate.open()
        assert list(first)[-1].last
        with pytest.raises(Draining, match="no slot"):
            next(waiting)
        assert not scheduler.accepting
        with pytest.raises(Draining):
            Stream(scheduler, work())


def test_a_session_that_cannot_be_healed_is_replaced(
    scripted: tuple[LoadedBundle, ScriptedEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, engine = scripted
    stepper = SessionStepper(bundle, 1)
    (context,) = engine.contexts

    def broken() -> None:
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(context, "zero", broken)
    context.failing = lambda: True
    with Scheduler(stepper) as scheduler:
        with pytest.raises(EngineFailed):
            list(Stream(scheduler, work()))
        assert list(Stream(scheduler, work()))[-1].last
    assert len(engine.contexts) == 2 and context.closed


def test_a_step_that_fails_as_a_whole_ends_every_answer_and_the_scheduler_lives(
    scripted: tuple[LoadedBundle, ScriptedEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, _ = scripted
    stepper = SessionStepper(bundle, 2)
    working = stepper.step
    failures = [RuntimeError("a defect")]

    def step() -> Iterator[Turn]:
        if failures:
            raise failures.pop()
        return working()

    monkeypatch.setattr(stepper, "step", step)
    with Scheduler(stepper) as scheduler:
        with pytest.raises(RuntimeError, match="a defect"):
            list(Stream(scheduler, work()))
        assert list(Stream(scheduler, work()))[-1].last
    assert scheduler.totals.slot_failures == 1


def test_a_defect_of_the_scheduler_ends_every_answer_and_leaves_nobody_waiting(
    scripted: tuple[LoadedBundle, ScriptedEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, engine = scripted
    gate = Gate(engine)
    heard: list[Event] = []
    with Scheduler(SessionStepper(bundle, 1)) as scheduler:
        scheduler.submit(work(), heard.append)
        wait_for(lambda: gate.runs > 0)
        scheduler.submit(work(), heard.append)

        def broken() -> None:
            raise RuntimeError("a defect")

        monkeypatch.setattr(scheduler, "_end_overdue", broken)
        gate.open()
        wait_for(lambda: sum(event.last for event in heard) == 2)
        assert all("a defect" in str(event.error) for event in heard if isinstance(event, Failure))
        assert isinstance(heard[-1], Failure)
        assert not scheduler.accepting and scheduler.occupancy().active == 0
        with pytest.raises(Draining):
            Stream(scheduler, work())


def no_memory(free: object, asked: object) -> int:
    raise MemoryError


@pytest.mark.parametrize("broken", [no_memory, lambda free, asked: 99])
def test_a_choice_of_slots_that_fails_costs_no_answer(
    scripted: tuple[LoadedBundle, ScriptedEngine],
    monkeypatch: pytest.MonkeyPatch,
    broken: Callable[[object, object], int],
) -> None:
    bundle, _ = scripted
    stepper = SessionStepper(bundle, 2)
    monkeypatch.setattr(stepper, "choose", broken)
    with Scheduler(stepper) as scheduler:
        for _ in range(2):
            assert tokens_of(list(Stream(scheduler, work()))) == alone(bundle, work())


def test_a_lane_that_cannot_be_healed_before_its_work_ends_no_other_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bundle, _ = scripted_bundle(language=Language(habit=3.0), batch=2)
    stepper = BatchStepper(bundle, 2)
    gate = stepper.batches[0].target.context
    with Scheduler(stepper) as scheduler:
        first = Stream(scheduler, work(max_tokens=None))
        next(first)

        def broken(row: int) -> None:
            raise RuntimeError("the device is gone")

        monkeypatch.setattr(gate, "zero", broken)
        stepper.batches[0].target.lanes[1].fail(EngineFailed("the launch of a neighbour"))
        with pytest.raises(RuntimeError, match="the device is gone"):
            list(Stream(scheduler, work()))
        assert list(first)[-1].last
    bundle.close()


def test_counts_below_one_are_refused(scripted: tuple[LoadedBundle, ScriptedEngine]) -> None:
    bundle, engine = scripted
    for slots, workers in ((0, 1), (1, 0)):
        with pytest.raises(InvalidArgument, match="at least 1"):
            SessionStepper(bundle, slots, workers=workers)
    engine.refuse_contexts = True
    with pytest.raises(MemoryError):
        SessionStepper(bundle, 2)
