"""How long a client may take: with its request, between two of them, and with what it is sent.

uvicorn closes a connection that is idle between two requests, and bounds nothing else. Here a connection ends whose
request does not come, whose body goes on after its answer, or whose client does not take what was written, also where
the server has closed it. The body of a request that is being answered is bounded by `body`.
"""

import asyncio
from logging import INFO

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from specruntime.server.logs import log
from specruntime.server.settings import Settings

_CONNECTIONS = 2048  # beyond the queue: who waits for a slot holds one
_LEAST_TAKEN = 1 << 14  # bytes of `write_seconds` that are worth waiting for more


def server_config(app: Starlette, settings: Settings, drain_seconds: float) -> uvicorn.Config:
    """uvicorn's own limits beside ours. No web sockets: their connections would be another protocol's."""

    class Protocol(_Bounded):
        limits = settings

    return uvicorn.Config(
        app,
        http=Protocol,
        ws="none",
        log_config=None,
        access_log=False,
        limit_concurrency=_CONNECTIONS,
        timeout_keep_alive=settings.keep_alive_seconds,  # type: ignore[arg-type]  # a delay, whole or not
        timeout_graceful_shutdown=max(1, round(drain_seconds)),
        server_header=False,
    )


class _Bounded(H11Protocol):
    """One connection. An answer is due from the end of a request's head until its last byte is written."""

    limits: Settings
    _reading: asyncio.TimerHandle | None = None
    _writing: asyncio.TimerHandle | None = None
    _unsent = 0  # bytes when `_writing` began

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        super().connection_made(transport)
        self._await_request()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._await_request()
        if self._writing is None or not self._only_taking_helps:
            self._await_taking()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._await_taking()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._await_taking()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._await_taking()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._reading, self._writing):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    @property
    def _answer_due(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _await_request(self) -> None:
        """Bounds the time without an answer due since the first byte; what comes meanwhile does not begin it anew."""
        if self._answer_due and self._reading is not None:
            self._reading.cancel()
            self._reading = None
        elif not self._answer_due and self._reading is None:
            self._reading = self.loop.call_later(self.limits.read_seconds, self.transport.close)

    @property
    def _only_taking_helps(self) -> bool:
        """Nothing more is written before the client takes something: an answer waits for that, or none is due."""
        return self.flow.write_paused or not self._answer_due

    def _await_taking(self) -> None:
        """Bounds the time that what is written now may lie here, once it can only become less."""
        if self._writing is not None:
            self._writing.cancel()
        self._writing = None
        self._unsent = self.transport.get_write_buffer_size()
        if self._unsent and self._only_taking_helps:
            self._writing = self.loop.call_later(self.limits.write_seconds, self._end_unless_taken)

    def _end_unless_taken(self) -> None:
        still = self.transport.get_write_buffer_size()
        if not still or self._unsent - still >= _LEAST_TAKEN:
            self._await_taking()
            return
        log("cut off", INFO, reason="the client took too long to read")
        self.transport.abort()
