"""No connection is kept for a client that sends nothing, does not end what it began, or does not read."""

import asyncio
import json
import signal
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from time import sleep
from typing import Any

import pytest
from click.testing import CliRunner
from starlette.applications import Starlette
from uvicorn.server import ServerState

from specruntime.cli.serve import serve_command
from specruntime.server.connections import server_config
from specruntime.server.main import _Draining
from specruntime.server.settings import Settings
from specruntime.server.streams import EventStream
from specruntime.serving import Scheduler, stepper_for
from tests.runtime.scripted_bundle import scripted_bundle
from tests.runtime.server.conftest import GivenLoop, Running, Serve, wait_for
from tests.runtime.server.http import ask, completion, request_bytes

LONG = 3600.0  # seconds that no test takes
HEALTH = b"GET /health HTTP/1.1\r\nHost: test\r\n\r\n"
DRIPS: dict[str, tuple[bytes, bytes]] = {
    "nothing": (b"", b""),
    "the head": (b"GET /health HTTP/1.1\r\nX: ", b"x"),
    "the next head": (HEALTH + b"GET /he", b"x"),
    "a body after its answer": (b"GET /health HTTP/1.1\r\nHost: t\r\nContent-Length: 100000\r\n\r\n", b"x"),
    "a body that was refused": (request_bytes(b"", length=10**9), b"x"),
    "chunks": (b"GET /health HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
}


@pytest.fixture
def dripping() -> Iterator[threading.Event]:
    ended = threading.Event()
    yield ended
    ended.set()


@pytest.mark.parametrize("what", DRIPS)
def test_what_comes_too_slowly_is_not_waited_for(serve: Serve, what: str, dripping: threading.Event) -> None:
    begun, drop = DRIPS[what]
    answers = begun.count(b"\r\n\r\n")
    server = serve(read_seconds=LONG, keep_alive_seconds=LONG)
    with server.connect() as connection:
        connection.sendall(begun)
        received = b""
        while received.count(b"HTTP/1.1 ") < answers:
            received += connection.recv(1 << 20)
        wait_for(lambda: len(server.connections) == 1)
        threading.Thread(target=drip, args=(connection, drop, dripping), daemon=True).start()
        server.pass_time(0.4 * LONG)
        assert len(server.connections) == 1, "it has time left"
        wait_for(lambda: gone_after(server, 0.4 * LONG), 60)  # what comes in between gives it no more time
        received += read_to_end(connection)
    assert received.count(b"HTTP/1.1 ") == answers
    assert ask(server)[0] == 200


def gone_after(server: Running, seconds: float) -> bool:
    """Whether the server holds no connection when some more time has passed."""
    server.pass_time(seconds)
    sleep(0.1)  # for drops to come
    return not server.connections


def drip(connection: socket.socket, drop: bytes, ended: threading.Event) -> None:
    while drop and not ended.wait(0.05):
        try:
            connection.sendall(drop)
        except OSError:
            return


def read_to_end(connection: socket.socket) -> bytes:
    """All that comes; the server may end it while something of ours is under way."""
    received = b""
    connection.settimeout(60)
    try:
        while piece := connection.recv(1 << 20):
            received += piece
    except ConnectionResetError:
        pass
    return received


def test_a_connection_is_kept_between_requests_for_its_time(serve: Serve) -> None:
    server = serve(read_seconds=9 * LONG, keep_alive_seconds=LONG)
    with server.connect() as connection:
        for _ in range(3):
            connection.sendall(HEALTH)
            received = connection.recv(4096)
            while not received.endswith(b"}"):
                received += connection.recv(4096)
            assert received.startswith(b"HTTP/1.1 200")
            server.pass_time(0.6 * LONG)
        server.pass_time(0.6 * LONG)
        assert connection.recv(4096) == b""


def test_an_answer_may_take_longer_than_its_request(serve: Serve) -> None:
    server = serve(read_seconds=LONG, write_seconds=LONG, keep_alive_seconds=LONG, capacity=4000)
    assert server.engine is not None
    passed: list[float] = []

    def slowly(context: int) -> bool:
        passed.append(0.4 * LONG)
        server.pass_time(passed[-1])
        return False

    server.engine.failing = slowly
    for stream in (False, True):
        assert ask(server, max_tokens=100, stream=stream)[0] == 200
    assert sum(passed) > 2 * LONG


def test_a_request_in_pieces_is_read_within_its_time(serve: Serve) -> None:
    server = serve(read_seconds=LONG)
    body = request_bytes(json.dumps(completion()).encode())
    with server.connect() as connection:
        for begin in range(0, len(body), 40):
            connection.sendall(body[begin : begin + 40])
            server.pass_time(LONG / 100)
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("close", [b"", b"Connection: close\r\n"])
def test_who_does_not_read_its_answers_is_cut_off(serve: Serve, close: bytes) -> None:
    server = serve(write_seconds=LONG, keep_alive_seconds=99 * LONG, read_seconds=99 * LONG)
    asked = b"GET /openapi.json HTTP/1.1\r\nHost: test\r\n\r\n"
    last = asked.replace(b"\r\n\r\n", b"\r\n" + close + b"\r\n")
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", server.port))
        threading.Thread(target=send_all, args=(connection, 4000 * asked + last), daemon=True).start()
        wait_for(lambda: any(bounded._writing is not None for bounded in server.bounded))
        wait_for(lambda: gone_after(server, LONG) and established(server) == 0)
        received = read_to_end(connection)
    assert received.count(b"HTTP/1.1 200") < 4000
    assert ask(server)[0] == 200


def send_all(connection: socket.socket, data: bytes) -> None:
    """As far as the server takes it."""
    with suppress(OSError):
        connection.sendall(data)


def test_who_reads_slowly_but_reads_gets_all(serve: Serve) -> None:
    server = serve(write_seconds=LONG, keep_alive_seconds=99 * LONG, read_seconds=99 * LONG)
    asked = b"GET /openapi.json HTTP/1.1\r\nHost: test\r\n\r\n"
    received = b""
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        connection.connect(("127.0.0.1", server.port))
        connection.settimeout(120)
        threading.Thread(target=send_all, args=(connection, 500 * asked), daemon=True).start()
        pieces = 0
        while received.count(b"HTTP/1.1 200") < 500:
            received += connection.recv(1 << 16)
            if len(received) > pieces << 16:  # the kernel holds megabytes of what was not read
                server.pass_time(LONG / 40)
                pieces += 1
    assert pieces > 40, "it takes longer in all than anything may lie unread"


class Pipe(asyncio.Transport):
    """A connection of which a test says how much waits for the client."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = 0
        self.ended = False
        self.aborted = False
        self.protocol: Any = None

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def is_closing(self) -> bool:
        return self.ended

    def abort(self) -> None:
        self.aborted = True
        self.close()
        self.protocol.connection_lost(None)

    def close(self) -> None:
        self.ended = True

    def write(self, data: object) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


@pytest.mark.parametrize("pipelined", [False, True])
def test_only_what_the_client_does_not_take_ends_a_stream(pipelined: bool) -> None:
    """While it reads, its queue is never empty: what is taken is written again."""

    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    async def follow() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, GivenLoop)
        config = server_config(never, Settings("m", write_seconds=LONG), 1)
        config.load()
        pipe = Pipe()
        pipe.protocol = protocol = config.http_protocol_class(
            config=config,  # type: ignore[call-arg]  # as uvicorn makes it
            server_state=ServerState(),
            app_state={},
        )
        protocol.connection_made(pipe)
        pipe.waiting = 20_000  # of the answer before
        protocol.data_received(HEALTH)
        for _ in range(3):
            pipe.waiting = 70_000
            protocol.pause_writing()
            pipe.waiting = 10_000
            protocol.resume_writing()
            for waiting in (30_000, 40_000, 35_000, 50_000):
                pipe.waiting = waiting
                if pipelined:
                    protocol.data_received(b"G")
                await loop.skip(0.6 * LONG)
        assert not pipe.ended, "it was cut off while its client read"
        pipe.waiting = 70_000
        protocol.pause_writing()
        for _ in range(8):
            if pipelined and not pipe.ended:
                protocol.data_received(b"G")
            await loop.skip(0.6 * LONG)
        found = pipe.ended
        if not found:
            pipe.abort()
        assert found

    with asyncio.Runner(loop_factory=GivenLoop) as runner:
        runner.run(follow())


def test_an_answer_of_uvicorns_own_that_is_not_read_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """The 503 beyond the limit of connections never reaches the application, and so reports no answer."""
    monkeypatch.setattr("specruntime.server.connections._CONNECTIONS", 1)

    async def follow() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, GivenLoop)
        limits = Settings("m", read_seconds=LONG, write_seconds=LONG)
        config = server_config(Starlette(), limits, 1)
        config.load()
        pipe = Pipe()
        pipe.protocol = protocol = config.http_protocol_class(
            config=config,  # type: ignore[call-arg]  # as uvicorn makes it
            server_state=ServerState(),
            app_state={},
        )
        protocol.connection_made(pipe)
        protocol.data_received(HEALTH)
        await asyncio.sleep(0)
        pipe.waiting = 500  # the 503
        assert pipe.ended and not pipe.aborted, "uvicorn closes it, when the client has read"
        await loop.skip(1.1 * LONG)
        assert not pipe.aborted
        await loop.skip(1.1 * LONG)
        assert pipe.aborted

    with asyncio.Runner(loop_factory=GivenLoop) as runner:
        runner.run(follow())


def established(server: Running) -> int:
    """Connections that the server's process still holds, by the kernel's own table."""
    port = f":{server.port:04X}"
    with open("/proc/net/tcp") as table:  # noqa: PTH123 - a file of the kernel
        rows = [line.split() for line in table.readlines()[1:]]
    return sum(row[1].endswith(port) and row[3] in ("01", "08") and row[9] != "0" for row in rows)


def test_a_stream_whose_head_cannot_be_sent_ends_its_answer() -> None:
    """The client has not read what it got before, so that not even the status can be written."""
    ended: list[bool] = []

    async def events() -> AsyncIterator[bytes]:
        try:
            yield b"data: 1\n\n"
        finally:
            ended.append(True)

    async def never(*_: object) -> Any:
        await asyncio.Event().wait()

    async def stream() -> None:
        await asyncio.wait_for(
            EventStream(events(), 0.1)({"type": "http", "method": "POST"}, never, never), 60
        )

    asyncio.run(stream())
    assert ended == [True]


def test_a_signal_that_cannot_be_logged_is_obeyed(
    scripted: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal may come while the stream of the log is written, which takes no second line then."""

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("reentrant call inside a buffered writer")

    server = _Draining(server_config(Starlette(), Settings("m"), 1), scripted)
    monkeypatch.setattr("specruntime.server.main.log", broken)
    server.handle_exit(signal.SIGTERM, None)
    assert server.should_exit and not server.force_exit and not scripted.accepting
    server.handle_exit(signal.SIGTERM, None)
    assert server.force_exit


@pytest.fixture
def scripted() -> Iterator[Scheduler]:
    bundle, _ = scripted_bundle()
    with Scheduler(stepper_for(bundle, 1)) as scheduler:
        yield scheduler


def test_the_limits_are_options() -> None:
    told = CliRunner().invoke(serve_command, ["--help"]).output
    assert all(f"--{name}-timeout" in told for name in ("read", "write", "keep-alive"))
    refused = CliRunner().invoke(serve_command, ["bundle", "--read-timeout", "0"])
    assert refused.exit_code == 2
