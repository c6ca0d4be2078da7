"""Requests over slots: equal to answers alone, in order, within limits, and none lost."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from random import Random

import numpy as np
import pytest

from specruntime import CapacityExceeded, EmptyPrompt, EngineFailed, InvalidArgument, SamplingParams, complete
from specruntime.bundle import LoadedBundle
from specruntime.serving import (
    AsyncStream,
    Cancelled,
    DeadlinePassed,
    Delivery,
    Draining,
    Event,
    Failure,
    QueueFull,
    Scheduler,
    SessionStepper,
    Stream,
    Turn,
    Work,
    collect,
)
from tests.runtime.scripted_bundle import ScriptedEngine, scripted_bundle
from tests.runtime.scripted_engine import VOCAB, Language

PROMPT = (3, 5, 3, 5, 3)


def work(
    prompt: tuple[int, ...] = PROMPT, *, speculate: bool = True, max_tokens: int | None = 12, seed: int = 0
) -> Work:
    temperature = 0.0 if seed == 0 else 1.0
    params = SamplingParams(temperature=temperature, seed=seed, max_tokens=max_tokens)
    return Work(np.array(prompt), params, speculate)


def tokens_of(deliveries: list[Delivery]) -> list[int]:
    return [token for delivery in deliveries for token in delivery.delta.tokens]


def alone(bundle: LoadedBundle, asked: Work) -> list[int]:
    """What a session of its own answers, plainly."""
    session = bundle.new_session(speculate=False)
    answer = complete(session, asked.prompt, asked.params)
    session.close()
    return list(answer.token_ids)


@pytest.fixture
def scripted() -> Iterator[tuple[LoadedBundle, ScriptedEngine]]:
    bundle, engine = scripted_bundle(language=Language(habit=3.0))
    yield bundle, engine
    bundle.close()


def wait_for(condition: Callable[[], bool], seconds: float = 5) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.001)


def prompts(count: int, longest: int = 40) -> list[tuple[int, ...]]:
    random = Random(7)
    return [tuple(random.randrange(VOCAB) for _ in range(random.randint(1, longest))) for _ in range(count)]


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


class Gate:
    """Holds the engine after `free` runs until it is opened."""

    def __init__(self, engine: ScriptedEngine, *, free: int = 0) -> None:
        self.runs = 0
        self._free = free
        self._open = threading.Event()
        engine.failing = self._pass

    def _pass(self, context: int) -> bool:
        self.runs += 1
        assert self.runs <= self._free or self._open.wait(10)
        return False

    def open(self) -> None:
        self._open.set()


def test_the_queue_is_bounded_and_a_free_slot_does_not_count(
    scripted: tuple[LoadedBundle, ScriptedEngine],
) -> None:
    bundle, engine = scripted
    stepper = SessionStepper(bundle, 1)
    gate = Gate(engine)
    with Scheduler(stepper, queue_limit=2) as scheduler:
        first = Stream(scheduler, work())
        wait_for(lambda: gate.runs > 0)
        waiting = [Stream(scheduler, work()) for _ in range(2)]
        with pytest.raises(QueueFull, match="at most 2 may"):
            Stream(scheduler, work())
        full = scheduler.occupancy()
        gate.open()
        assert all(list(stream)[-1].last for stream in (first, *waiting))
    assert (full.active, full.queued, full.slots) == (1, 2, 1)
    assert scheduler.totals.refused["queue_full"] == 1


def test_one_request_after_another_needs_no_queue(scripted: tuple[LoadedBundle, ScriptedEngine]) -> None:
    bundle, _ = scripted
    with Scheduler(SessionStepper(bundle, 1), queue_limit=0) as scheduler:
        for _ in range(20):
            assert list(Stream(scheduler, work()))[-1].last


def test_a_cancelled_request_frees_its_slot_before_the_next_step(
    scripted: tuple[LoadedBundle, ScriptedEngine],
) -> None:
    bundle, _ = scripted
    with Scheduler(SessionStepper(bundle, 1)) as scheduler:
        events: list[Event] = []

        def hear(event: Event) -> None:
            events.append(event)
            ticket.cancel()

        ticket = scheduler.submit(work(max_tokens=None), hear)
        assert list(Stream(scheduler, work()))[-1].last
    assert len(events) == 2  # one delivery, then the end
    assert isinstance(events[1], Failure) and isinstance(events[1].error, Cancelled)


def test_a_waiting_request_can_be_cancelled(scripted: tuple[LoadedBundle, ScriptedEngine]) -> None:
    bundle, engine = scripted
    stepper = SessionStepper(bundle, 1)
    gate = Gate(engine)
    with Scheduler(stepper) as scheduler:
        first = Stream(scheduler, work())
        wait_for(lambda: gate.runs > 0)
        second = Stream(scheduler, work())
        second.ticket.cancel()
        gate.open()
        with pytest.raises(Cancelled):
            next(second)
        assert list(first)[-1].last


def test_a_stream_nobody_holds_is_cancelled(scripted: tuple[LoadedBundle, ScriptedEngine]) -> None:
    bundle, _ = scripted
    with Scheduler(SessionStepper(bundle, 1)) as scheduler:
        ticket = Stream(scheduler, work(max_tokens=None)).ticket
        assert ticket.cancelled


def test_deadlines_end_running_and_waiting_requests(scripted: tuple[LoadedBundle, ScriptedEngine]) -> None:
    bundle, engine = scripted
    stepper = SessionStepper(bundle, 1)
    gate = Gate(engine)
    with Scheduler(stepper) as scheduler:
        running = Stream(scheduler, work(), seconds=0.05)
        wait_for(lambda: gate.runs > 0)
        waiting = Stream(scheduler, work(), seconds=0.05)
        time.sleep(0.06)
        gate.open()
        for stream in (running, waiting):
            with pytest.raises(DeadlinePassed):
                list(stream)
        assert scheduler.occupancy().active == 0
    assert scheduler.totals.ended["DeadlinePassed"] == 2


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


def test_draining_lets_answers_end_and_takes_no_more(scripted: tuple[LoadedBundle, ScriptedEngine]) -> None:
    bundle, engine = scripted
    stepper = SessionStepper(bundle, 1)
    gate = Gate(engine)
    with Scheduler(stepper) as scheduler:
        taken = [Stream(scheduler, work()) for _ in range(2)]
        assert scheduler.drain(timeout=0.01) is False
        with pytest.raises(Draining):
            Stream(scheduler, work())
        gate.open()
        assert scheduler.drain(timeout=10) is True
        assert all(list(stream)[-1].last for stream in taken)


def test_closing_ends_what_still_runs(scripted: tuple[LoadedBundle, ScriptedEngine]) -> None:
    bundle, engine = scripted
    stepper = SessionStepper(bundle, 1)
    gate = Gate(engine)
    scheduler = Scheduler(stepper)
    streams = [Stream(scheduler, work(max_tokens=None)) for _ in range(3)]
    wait_for(lambda: gate.runs > 0)
    threading.Timer(0.05, gate.open).start()
    scheduler.close()
    for stream in streams:
        with pytest.raises(Draining):
            list(stream)


def test_async_streams_deliver_the_same_and_cancel_when_closed(
    scripted: tuple[LoadedBundle, ScriptedEngine],
) -> None:
    bundle, engine = scripted
    gate = Gate(engine, free=1)  # the answer that is left cannot end before

    async def main(scheduler: Scheduler) -> list[list[int]]:
        async def one(asked: Work) -> list[int]:
            return tokens_of([delivery async for delivery in AsyncStream(scheduler, asked)])

        left = AsyncStream(scheduler, work(max_tokens=None))
        await anext(left)
        left.close()
        gate.open()
        assert [delivery async for delivery in left] == []
        return await asyncio.gather(*(one(work(prompt)) for prompt in prompts(8)))

    with Scheduler(SessionStepper(bundle, 3)) as scheduler:
        answers = asyncio.run(main(scheduler))
    assert answers == [alone(bundle, work(prompt)) for prompt in prompts(8)]
    assert scheduler.totals.ended["Cancelled"] == 1


def test_an_answer_whose_event_loop_is_gone_frees_its_slot(
    scripted: tuple[LoadedBundle, ScriptedEngine],
) -> None:
    bundle, engine = scripted
    stepper = SessionStepper(bundle, 1)
    gate = Gate(engine)
    with Scheduler(stepper) as scheduler:
        kept: list[AsyncStream] = []

        async def ask() -> None:
            kept.append(AsyncStream(scheduler, work(max_tokens=None)))

        asyncio.run(ask())
        gate.open()
        wait_for(lambda: scheduler.occupancy().active == 0 and scheduler.totals.ended["Cancelled"] == 1)


def test_counts_below_one_are_refused(scripted: tuple[LoadedBundle, ScriptedEngine]) -> None:
    bundle, engine = scripted
    for slots, workers in ((0, 1), (1, 0)):
        with pytest.raises(InvalidArgument, match="at least 1"):
            SessionStepper(bundle, slots, workers=workers)
    engine.refuse_contexts = True
    with pytest.raises(MemoryError):
        SessionStepper(bundle, 2)
