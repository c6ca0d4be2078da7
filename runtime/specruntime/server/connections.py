"""Limits how long a client may take: with its request, between two of them, and with what it is sent.

uvicorn closes a connection that is idle between two requests, and bounds nothing else. Here a connection ends whose
request does not come, whose body goes on after its answer, or whose client does not take what was written, also where
the server has closed it. No ASGI application sees these: they happen before a request and after its answer. So a
protocol of its own stands between asyncio's transport and uvicorn's protocol, and passes every call on. Which answers
are due it learns from a middleware, through the state that uvicorn gives to each request of a connection. The body of a
request that is being answered is bounded by `routes`.
"""

import asyncio
from logging import INFO
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from specruntime.server.logs import log
from specruntime.server.settings import Settings

CONNECTION = "specruntime.connection"  # the key of a request's state
_CONNECTIONS = 2048  # beyond the queue: a request that waits for a slot holds one
_LEAST_TAKEN = 1 << 14  # bytes of `write_seconds` that are worth waiting for more


def server_config(app: ASGIApp, settings: Settings, drain_seconds: float) -> uvicorn.Config:
    """uvicorn's own limits together with ours. No web sockets: their connections would be another protocol's."""

    class Protocol(BoundedConnection):
        limits = settings

    return uvicorn.Config(
        _report_answers(app),
        http=Protocol,
        ws="none",
        log_config=None,
        access_log=False,
        limit_concurrency=_CONNECTIONS,
        timeout_keep_alive=settings.keep_alive_seconds,  # type: ignore[arg-type]  # a delay, whole or not
        timeout_graceful_shutdown=max(1, round(drain_seconds)),
        server_header=False,
    )


def _report_answers(app: ASGIApp) -> ASGIApp:
    """Return a middleware that reports to a request's connection when its answer becomes due and when it has ended."""

    async def report(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        connection: BoundedConnection = scope["state"][CONNECTION]
        connection.answer_begins()
        try:
            await app(scope, receive, send)
        finally:
            connection.answer_ends()

    return report


class BoundedConnection(asyncio.Protocol):
    """One connection. An answer is due from the end of a request's head until its last byte is written."""

    limits: Settings

    def __init__(self, *, app_state: dict[str, Any], **given: Any) -> None:
        """Take what uvicorn gives to each of its protocols."""
        self._served = H11Protocol(app_state={**app_state, CONNECTION: self}, **given)
        self._answers_due = 0
        self._write_paused = False
        self._reading: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None
        self._unsent = 0  # bytes when `_writing` began

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # a server's always is
        self._loop, self._transport = asyncio.get_running_loop(), transport
        self._served.connection_made(transport)
        self._await_request()

    def data_received(self, data: bytes) -> None:
        self._served.data_received(data)
        self._await_request()
        if self._writing is None or not self._only_taking_helps:
            self._await_taking()

    def eof_received(self) -> None:
        self._served.eof_received()

    def pause_writing(self) -> None:
        self._write_paused = True
        self._served.pause_writing()
        self._await_taking()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._served.resume_writing()
        self._await_taking()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._reading, self._writing):
            if timer is not None:
                timer.cancel()
        self._served.connection_lost(exc)

    def answer_begins(self) -> None:
        """Note that a request's head has come; it may come before the answer to the one before has quite ended."""
        self._answers_due += 1
        self._await_request()
        self._await_taking()

    def answer_ends(self) -> None:
        self._answers_due -= 1
        self._await_taking()

    def _await_request(self) -> None:
        """Bound the time without an answer due since the first byte; what comes meanwhile does not begin it again."""
        if self._answers_due and self._reading is not None:
            self._reading.cancel()
            self._reading = None
        elif not self._answers_due and self._reading is None:
            self._reading = self._loop.call_later(self.limits.read_seconds, self._end_waiting)

    def _end_waiting(self) -> None:
        self._transport.close()
        if self._writing is None:  # of an answer that the application does not see, uvicorn's 503
            self._await_taking()

    @property
    def _only_taking_helps(self) -> bool:
        """Nothing more is written before the client takes something: an answer waits for that, or none is due."""
        return self._write_paused or not self._answers_due

    def _await_taking(self) -> None:
        """Bound the time that what is written now may lie here, once it can only become less."""
        if self._writing is not None:
            self._writing.cancel()
        self._writing = None
        self._unsent = self._transport.get_write_buffer_size()
        if self._unsent and self._only_taking_helps:
            self._writing = self._loop.call_later(self.limits.write_seconds, self._end_unless_taken)

    def _end_unless_taken(self) -> None:
        still = self._transport.get_write_buffer_size()
        if not still or self._unsent - still >= _LEAST_TAKEN:
            self._await_taking()
            return
        log("cut off", INFO, reason="the client took too long to read")
        self._transport.abort()
