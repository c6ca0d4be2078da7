"""Requests that wait, are cancelled or overdue, and a scheduler that drains or closes."""

import asyncio
import threading

import pytest

from specruntime.bundle import LoadedBundle
from specruntime.serving import (
    AsyncStream,
    Cancelled,
    DeadlinePassed,
    Draining,
    Event,
    Failure,
    QueueFull,
    Scheduler,
    SessionStepper,
    Stream,
    Work,
)
from tests.runtime.scripted_bundle import ScriptedEngine
from tests.runtime.serving.scripted_work import Gate, alone, prompts, tokens_of, wait_for, work
from tests.scripted_clock import CLOCK


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
        running = Stream(scheduler, work(), seconds=60)
        wait_for(lambda: gate.runs > 0)
        waiting = Stream(scheduler, work(), seconds=60)
        CLOCK.advance(61)
        gate.open()
        for stream in (running, waiting):
            with pytest.raises(DeadlinePassed):
                list(stream)
        assert scheduler.occupancy().active == 0
    assert scheduler.totals.ended["DeadlinePassed"] == 2


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
        assert scheduler.drain(timeout=120) is True
        assert all(list(stream)[-1].last for stream in taken)


def test_closing_ends_what_still_runs(scripted: tuple[LoadedBundle, ScriptedEngine]) -> None:
    bundle, engine = scripted
    stepper = SessionStepper(bundle, 1)
    gate = Gate(engine)
    scheduler = Scheduler(stepper)
    streams = [Stream(scheduler, work(max_tokens=None)) for _ in range(3)]
    wait_for(lambda: gate.runs > 0)
    closing = threading.Thread(target=scheduler.close)
    closing.start()
    wait_for(lambda: not scheduler.accepting)
    gate.open()
    closing.join(60)
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
