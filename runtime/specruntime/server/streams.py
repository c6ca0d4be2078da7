"""Sends an answer as server-sent events while it grows, and notices a client that leaves or does not read.

sse-starlette does both for a stream. What it needs here: the head is sent with the first event, so that the time for a
client to read covers it and the iterator has begun, and can clean up, before anything waits.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from logging import INFO, WARNING, getLogger
from typing import TypeVar

from sse_starlette import EventSourceResponse
from sse_starlette.sse import AppStatus
from starlette.types import Message, Receive, Scope, Send

from specruntime.server.logs import log
from specruntime.server.problems import json_bytes, problem_of
from specruntime.server.responses import AnswerShape
from specruntime.server.routes import log_problem
from specruntime.serving import AsyncStreams, Delivery
from specruntime.serving.events import Cancelled

T = TypeVar("T")
DONE = b"data: [DONE]\n\n"


def configure_streams() -> None:
    """Set sse-starlette up for this process: streams may end after the first signal, and no log has what they send."""
    getLogger("sse_starlette").setLevel(WARNING)
    AppStatus.disable_automatic_graceful_drain()  # type: ignore[no-untyped-call]  # theirs


def event(data: bytes) -> bytes:
    """One event; JSON holds no line breaks."""
    return b"data: " + data + b"\n\n"


class EventStream(EventSourceResponse):
    """Sends the events of an iterator. Ends, and closes the iterator, when the client leaves or stops reading.

    `write_seconds` is what a client may take to read what is in the way of the next event.
    """

    def __init__(self, events: AsyncIterator[bytes], write_seconds: float) -> None:
        super().__init__(events, sep="\n", ping=0, send_timeout=write_seconds)
        del self.headers["connection"]  # whether it is kept is what client and uvicorn agree on

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        head: Message | None = None

        async def send_from_first_event(message: Message) -> None:
            nonlocal head
            if message["type"] == "http.response.start":
                head = message
                return
            if head is not None:
                await send(head)
                head = None
            await send(message)

        try:
            await super().__call__(scope, receive, send_from_first_event)
        except (TimeoutError, OSError):
            log("cut off", INFO, reason="the client took too long to read, or is gone")


async def events_of(
    stream: AsyncStreams,
    first: tuple[int, Delivery],
    shape: AnswerShape,
    *,
    route: str,
    with_usage: bool,
    ended: Callable[[Delivery], None],
) -> AsyncIterator[bytes]:
    """Yield the events of a stream, from its first delivery on; an error is the last event.

    `ended` gets the last delivery of each answer that has begun, also where the client leaves.
    """
    number, delivery = first
    last = {number: delivery}
    try:
        for chunk in shape.chunks(number, delivery):
            yield event(json_bytes(chunk))
        async for number, delivery in stream:
            last[number] = delivery
            for chunk in shape.chunks(number, delivery):
                yield event(json_bytes(chunk))
        if with_usage:
            yield event(json_bytes(shape.usage_chunk([last[number].figures for number in sorted(last)])))
        yield DONE
    except Exception as error:
        problem = problem_of(error)
        log_problem("failed", problem, error, route=route, id=shape.id)
        yield event(json_bytes(problem.body))
    finally:
        stream.close()
        for number in sorted(last):
            ended(last[number])


async def unless_gone(receive: Receive, answer: Awaitable[T]) -> T:
    """Return what the awaitable gives; raises `Cancelled` when the client leaves before. The body has been read."""
    answering = asyncio.ensure_future(answer)
    leaving = asyncio.ensure_future(_until_gone(receive))
    try:
        await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
        if answering.done():
            return answering.result()
        raise Cancelled("the client left before its answer")
    finally:
        for task in (answering, leaving):
            task.cancel()
        await asyncio.gather(answering, leaving, return_exceptions=True)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
