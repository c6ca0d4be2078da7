"""Server-sent events over ASGI: sent as they come, and no longer than somebody takes them."""

import asyncio
from collections.abc import AsyncIterator
from logging import INFO

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from specruntime.server.logs import log

_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
DONE = b"data: [DONE]\n\n"


def event(data: bytes) -> bytes:
    """One event; JSON holds no line breaks."""
    return b"data: " + data + b"\n\n"


class EventStream(Response):
    """Sends the events of an iterator. Ends, and closes the iterator, when the client leaves or stops reading.

    `write_seconds` is what a client may take to read what is in the way of the next event.
    """

    def __init__(self, events: AsyncIterator[bytes], write_seconds: float) -> None:
        super().__init__(None, 200, _HEADERS, "text/event-stream")
        del self.headers["content-length"]
        self._events = events
        self._write_seconds = write_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.ensure_future(self._send_all(send))
        leaving = asyncio.ensure_future(_until_gone(receive))
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        except (TimeoutError, OSError):
            log("cut off", INFO, reason="the client took too long to read, or is gone")
        finally:
            for task in (sending, leaving):
                task.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)
            await self._events.aclose()  # type: ignore[attr-defined]  # a generator

    async def _send_all(self, send: Send) -> None:
        """Waits for the client only when the iterator has begun: one that has not would not close what it holds."""
        head: Message | None = {
            "type": "http.response.start",
            "status": 200,
            "headers": self.raw_headers,
        }
        async for data in self._events:
            async with asyncio.timeout(self._write_seconds):
                if head is not None:
                    await send(head)
                    head = None
                await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def disconnected(receive: Receive) -> None:
    """Returns when the client has left; for requests whose body has been read."""
    await _until_gone(receive)
