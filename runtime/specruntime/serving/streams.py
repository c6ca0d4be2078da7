"""A request's events as an iterator, for threads and for asyncio. Closing one before its end cancels the request."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue

from specruntime.serving.events import Delivery, Event, Failure
from specruntime.serving.scheduler import Scheduler, Ticket
from specruntime.serving.stepper import Work


class _Cancelling:
    """Ends its request with itself."""

    ticket: Ticket
    _ended = False

    def close(self) -> None:
        """Cancel what has not ended. Idempotent."""
        self.ticket.cancel()
        self._ended = True

    def __del__(self) -> None:
        if ticket := getattr(self, "ticket", None):
            ticket.cancel()


class Stream(_Cancelling):
    """Yields the deliveries of one request; raises the error that ended its answer."""

    def __init__(self, scheduler: Scheduler, work: Work, *, seconds: float | None = None) -> None:
        """Submit at once. Raises what `Scheduler.submit` raises."""
        self._events: SimpleQueue[Event] = SimpleQueue()
        self.ticket = scheduler.submit(work, self._events.put, seconds=seconds)

    def __iter__(self) -> "Stream":
        return self

    def __next__(self) -> Delivery:
        if self._ended:
            raise StopIteration
        event = self._events.get()
        self._ended = event.last
        return _delivered(event)


class AsyncStream(_Cancelling):
    """`Stream` for the event loop that is running when it is made."""

    def __init__(self, scheduler: Scheduler, work: Work, *, seconds: float | None = None) -> None:
        """Submit at once. Raises what `Scheduler.submit` raises."""
        loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        put = self._events.put_nowait
        self.ticket = scheduler.submit(work, lambda event: _hand_over(loop, put, event), seconds=seconds)

    def __aiter__(self) -> "AsyncStream":
        return self

    async def __anext__(self) -> Delivery:
        if self._ended:
            raise StopAsyncIteration
        event = await self._events.get()
        self._ended = event.last
        return _delivered(event)


class AsyncStreams:
    """The deliveries of several requests, each with the request's number, as they come.

    The first error of any ends all of them.
    """

    def __init__(self, scheduler: Scheduler, works: Sequence[Work], *, seconds: float | None = None) -> None:
        """Submit all at once, or none. Raises what `Scheduler.submit` raises."""
        loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()
        self._left = len(works)
        self.tickets: list[Ticket] = []
        try:
            for number, work in enumerate(works):
                put = partial(_number_later, loop, self._events, number)
                self.tickets.append(scheduler.submit(work, put, seconds=seconds))
        except BaseException:
            self.close()
            raise

    def __aiter__(self) -> "AsyncStreams":
        return self

    async def __anext__(self) -> tuple[int, Delivery]:
        if not self._left:
            raise StopAsyncIteration
        number, event = await self._events.get()
        try:
            delivery = _delivered(event)
        except BaseException:
            self.close()
            raise
        self._left -= event.last
        return number, delivery

    def close(self) -> None:
        """Cancel what has not ended. Idempotent."""
        self._left = 0
        for ticket in self.tickets:
            ticket.cancel()

    def __del__(self) -> None:
        for ticket in getattr(self, "tickets", ()):
            ticket.cancel()


def collect(
    scheduler: Scheduler, works: Sequence[Work], ended: Callable[[], object] = lambda: None
) -> list[list[Delivery]]:
    """Return the deliveries of all works, in their order; `ended` is called as each answer ends.

    Raises the first error any of them meets, or `ended` raises, and cancels the others.
    """
    events: SimpleQueue[tuple[int, Event]] = SimpleQueue()
    answers: list[list[Delivery]] = [[] for _ in works]
    tickets: list[Ticket] = []
    try:
        for number, work in enumerate(works):
            tickets.append(scheduler.submit(work, partial(_number, events, number)))
        left = len(works)
        while left:
            number, event = events.get()
            answers[number].append(_delivered(event))
            if event.last:
                left -= 1
                ended()
        return answers
    except BaseException:
        for ticket in tickets:
            ticket.cancel()
        raise


def _number(events: SimpleQueue[tuple[int, Event]], number: int, event: Event) -> None:
    events.put((number, event))


def _number_later(
    loop: asyncio.AbstractEventLoop, events: "asyncio.Queue[tuple[int, Event]]", number: int, event: Event
) -> None:
    loop.call_soon_threadsafe(events.put_nowait, (number, event))


def _hand_over(loop: asyncio.AbstractEventLoop, put: Callable[[Event], None], event: Event) -> None:
    """From the scheduler's thread; raises once the loop is closed, which cancels the request."""
    loop.call_soon_threadsafe(put, event)


def _delivered(event: Event) -> Delivery:
    if isinstance(event, Failure):
        raise event.error
    return event
