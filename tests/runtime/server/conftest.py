"""Servers over loopback: one with text over the tiny bundle, and scripted ones whose engine can be held or broken.

Their limits are longer than any test takes; time passes by `Running.pass_time` for timers of the event loop, and by
`CLOCK` for the deadlines of requests.
"""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
import uvicorn

from specruntime.bundle import LoadedBundle, open_bundle
from specruntime.server.app import create_app
from specruntime.server.connections import CONNECTION, BoundedConnection, server_config
from specruntime.server.settings import Settings
from specruntime.serving import Scheduler, stepper_for
from specruntime.text.codec import TextCodec
from tests.runtime.scripted_bundle import ScriptedEngine, scripted_bundle
from tests.runtime.scripted_engine import Language


class GivenLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is `ahead` of the machine's."""

    ahead = 0.0

    def time(self) -> float:
        return super().time() + self.ahead

    async def skip(self, seconds: float) -> None:
        """Lets that much time pass, and every timer fire that is due then."""
        self.ahead += seconds
        for _ in range(
            3
        ):  # a timer that is due is called in the next turn, what it wakes up in the one after
            await asyncio.sleep(0)


@dataclass
class Running:
    """A server that answers, and what is behind it."""

    port: int
    scheduler: Scheduler
    bundle: LoadedBundle
    server: uvicorn.Server
    loop: GivenLoop
    engine: ScriptedEngine | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, key: str = "none") -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=300)

    def pass_time(self, seconds: float) -> None:
        """Lets time pass for the timers of the event loop; from any other thread."""
        asyncio.run_coroutine_threadsafe(self.loop.skip(seconds), self.loop).result(60)

    @property
    def connections(self) -> list[Any]:
        """uvicorn's protocols of the connections it holds."""
        return list(self.server.server_state.connections)

    @property
    def bounded(self) -> list[BoundedConnection]:
        """What bounds each of them."""
        return [protocol.app_state[CONNECTION] for protocol in self.connections]

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=120)


@contextmanager
def running(
    bundle: LoadedBundle,
    settings: Settings,
    *,
    slots: int = 2,
    queue_limit: int = 16,
    engine: ScriptedEngine | None = None,
) -> Iterator[Running]:
    """Serves the bundle from a thread of this process."""
    with (
        Scheduler(stepper_for(bundle, slots), queue_limit=queue_limit) as scheduler,
        serving(
            scheduler, bundle, bundle.tokenizer, bundle.manifest.target.capacity, settings, engine
        ) as server,
    ):
        yield server


@contextmanager
def serving(
    scheduler: Scheduler,
    bundle: LoadedBundle,
    codec: TextCodec | None,
    capacity: int,
    settings: Settings,
    engine: ScriptedEngine | None = None,
) -> Iterator[Running]:
    """Serves what a scheduler answers."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    server = uvicorn.Server(server_config(create_app(scheduler, codec, capacity, settings), settings, 1))
    loop = GivenLoop()

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(server.serve(sockets=[listener]))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    wait_for(lambda: server.started)
    yield Running(listener.getsockname()[1], scheduler, bundle, server, loop, engine)
    server.should_exit = True
    thread.join(120)
    assert not thread.is_alive()


def wait_for(condition: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.002)


@pytest.fixture(scope="package")
def tiny_server(tiny_bundle: Path) -> Iterator[Running]:
    with (
        open_bundle(tiny_bundle, verify=False) as bundle,
        running(bundle, Settings("tiny-random"), queue_limit=64) as server,
    ):
        yield server


Serve = Callable[..., Running]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts scripted servers: `serve(slots=1, queue_limit=0, max_body_bytes=100, ...)`."""
    open_ones = []

    def start(
        *, slots: int = 1, queue_limit: int = 16, capacity: int = 64, batch: int = 1, **limits: object
    ) -> Running:
        bundle, engine = scripted_bundle(language=Language(habit=3.0), capacity=capacity, batch=batch)
        settings = Settings("scripted", **limits)  # type: ignore[arg-type]  # each test names a real one
        context = running(bundle, settings, slots=slots, queue_limit=queue_limit, engine=engine)
        open_ones.append(context)
        return context.__enter__()

    yield start
    for context in open_ones:
        context.__exit__(None, None, None)
