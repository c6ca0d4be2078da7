"""A server process under faults and load: what survives, what ends in one line, and memory that stays flat."""

import http.client
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from specruntime.server.logs import JsonLines, log, log_to
from specruntime.server.settings import Settings
from tests.runtime.server.conftest import Running, Serve, wait_for
from tests.runtime.server.http import ask, call, request_bytes

SOAK_REQUESTS = int(os.environ.get("SPECRUNTIME_SOAK_REQUESTS", "2000"))
SPECRUNTIME = str(Path(sys.executable).with_name("specruntime"))


class Process:
    """`specruntime serve` in a process of its own; quacks like `Running` for `call`."""

    def __init__(self, popen: "subprocess.Popen[str]", port: int) -> None:
        self.popen = popen
        self.port = port

    def resident(self) -> float:
        """Megabytes of resident memory."""
        pages = int(Path(f"/proc/{self.popen.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGESIZE") / 1e6

    def complete(self, **fields: Any) -> tuple[int, Any, dict[str, str]]:
        body = {"model": "tiny-random", "prompt": "abcabc", "max_tokens": 12, "temperature": 0, **fields}
        return call(self, "POST", "/v1/completions", body)  # type: ignore[arg-type]  # only its port is used

    def figures(self) -> dict[str, float]:
        """The metrics by name and labels."""
        lines = call(self, "GET", "/metrics")[1].splitlines()  # type: ignore[arg-type]  # only its port is used
        named = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name: float(value) for name, value in named}

    def begin(self, **fields: Any) -> bytes:
        """The first bytes of an answer that is not read further."""
        body = {"model": "tiny-random", "prompt": "abcabc", "temperature": 0, **fields}
        with socket.create_connection(("127.0.0.1", self.port), timeout=120) as connection:
            connection.sendall(request_bytes(json.dumps(body).encode()))
            return connection.recv(400)


@contextmanager
def serving(bundle: Path, *options: str) -> Iterator[Process]:
    command = [SPECRUNTIME, "serve", str(bundle), "--port", "0", "--threads", "1", *options]
    popen = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert popen.stderr is not None
        started = json.loads(popen.stderr.readline())
        drained = threading.Thread(target=popen.stderr.read, daemon=True)
        drained.start()
        yield Process(popen, int(started["address"].rsplit(":", 1)[1]))
    finally:
        popen.kill()
        popen.wait()


@pytest.fixture
def place(tiny_bundle: Path, tmp_path: Path) -> Path:
    """A copy of the bundle that a test may harm."""
    return Path(shutil.copytree(tiny_bundle, tmp_path / "served.bundle"))


def replace(place: Path) -> None:
    """As a new build puts itself in place."""
    other = Path(shutil.copytree(place, place.with_name("other.bundle")))
    place.rename(place.with_name("old.bundle"))
    other.rename(place)
    shutil.rmtree(place.with_name("old.bundle"))


def replace_files(place: Path) -> None:
    """As tools do that write a new file and rename it: what is open keeps the old one. The new ones are truncated."""
    for file in list(place.rglob("*.*")):
        beside = file.with_name("new")
        beside.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
        beside.rename(file)


def cut_short(place: Path) -> None:
    for file in place.rglob("*.*"):
        os.truncate(file, file.stat().st_size // 2)


def write_over(place: Path) -> None:
    for file in place.rglob("*.weights"):
        with file.open("r+b") as opened:
            opened.write(b"\x3f" * file.stat().st_size)


HARMLESS: dict[str, tuple[Callable[[Path], None], tuple[str, ...]]] = {
    "replaced": (replace, ()),
    "deleted": (shutil.rmtree, ()),
    "files renamed over": (replace_files, ()),
    "cut short under copies": (cut_short, ("--copy-weights",)),
    "written over under copies": (write_over, ("--copy-weights",)),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", HARMLESS)
def test_a_bundle_that_changes_while_it_is_served_changes_no_answer(place: Path, fault: str) -> None:
    harm, options = HARMLESS[fault]
    with serving(place, "--slots", "1", *options) as server:
        before = server.complete()[1]
        harm(place)
        for _ in range(3):
            assert server.complete()[1]["choices"] == before["choices"]


@pytest.mark.slow
def test_mapped_weights_cut_short_in_place_give_no_other_answer_and_are_refused_afterwards(
    place: Path,
) -> None:
    """The kernel may end a process whose mapped file is cut, and nothing else may happen."""
    with serving(place, "--slots", "1") as server:
        before = server.complete()[1]
        cut_short(place)
        try:
            assert server.complete()[1]["choices"] == before["choices"]
        except (OSError, http.client.HTTPException):
            assert server.popen.wait(120) == -signal.SIGBUS
    refused = subprocess.run(
        [SPECRUNTIME, "serve", str(place), "--port", "0"], capture_output=True, text=True, timeout=60
    )
    assert refused.returncode == 1 and refused.stderr.startswith("error: ")
    assert len(refused.stderr.splitlines()) == 1


class FullDisk:
    """Standard error on a disk without space."""

    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")

    def flush(self) -> None:
        raise OSError(28, "No space left on device")


def test_a_full_disk_under_the_log_costs_no_answer(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve()
    monkeypatch.setattr(logging, "raiseExceptions", False)
    loggers = [logging.getLogger(name) for name in ("specruntime", "uvicorn")]
    kept = [(logger.handlers, logger.propagate, logger.level) for logger in loggers]
    log_to(FullDisk())  # type: ignore[arg-type]  # as much of a stream as logging uses
    try:
        assert ask(server)[0] == 200
    finally:
        for logger, (handlers, propagate, level) in zip(loggers, kept, strict=True):
            logger.handlers, logger.propagate = handlers, propagate
            logger.setLevel(level)


def test_log_lines_are_json_whatever_they_hold(capsys: pytest.CaptureFixture[str]) -> None:
    record = logging.LogRecord("specruntime.server", 20, "f", 1, "answered", (), None)
    record.fields = {"text": 'a"\n\x00\ud800', "path": Path("x"), "id": 3}
    line = JsonLines().format(record)
    assert "\n" not in line
    told = json.loads(line)
    assert (told["event"], told["level"], told["id"], told["path"]) == ("answered", "info", 3, "x")
    log("no listener", 10, field=1)
    assert Settings("m").admits("anything")


def mixed_client(
    server: Process, number: int, requests: int, resident: list[float], failures: list[object]
) -> None:
    """Requests of every kind, one after the other; what is not as expected goes to `failures`.

    After each the resident memory of the server goes to `resident`.
    """
    random = Random(number)
    expected: dict[str, Any] = {}
    for _ in range(requests):
        if failures:
            return
        kind = random.choice(("same", "same", "sampled", "logprobs", "stream", "leave", "wrong", "long"))
        try:
            if kind == "same":
                status, body, _ = server.complete()
                ok = status == 200 and body["choices"] == expected.setdefault("same", body["choices"])
            elif kind == "sampled":
                ok = server.complete(temperature=0.9, max_tokens=random.randint(1, 30))[0] == 200
            elif kind == "logprobs":
                ok = server.complete(logprobs=5)[0] == 200
            elif kind == "stream":
                status, text, _ = server.complete(stream=True, include_authors=True)
                ok = status == 200 and text.endswith("data: [DONE]\n\n")
            elif kind == "leave":
                ok = server.begin(max_tokens=200, stream=True, ignore_eos=True).startswith(b"HTTP/1.1 200")
            elif kind == "wrong":
                ok = server.complete(temperature=7)[0] == 422
            else:
                ok = server.complete(prompt="x" * 400)[0] == 400
        except OSError as error:
            ok = False
            kind = f"{kind}: {error!r}"
        if not ok:
            failures.append(kind)
        resident.append(server.resident())


@pytest.mark.slow
@pytest.mark.timeout(SOAK_REQUESTS + 600)
@pytest.mark.parametrize("built", ["tiny_bundle", "batched_bundle"])
def test_memory_is_flat_under_mixed_load(
    request: pytest.FixtureRequest, record_property: Callable[[str, object], None], built: str
) -> None:
    """Peaks of resident memory in the second and the last quarter; SPECRUNTIME_SOAK_REQUESTS=50000 for the long one."""
    resident: list[float] = []
    failures: list[object] = []
    with serving(request.getfixturevalue(built), "--slots", "3") as server:
        clients = [
            threading.Thread(
                target=mixed_client, args=(server, number, SOAK_REQUESTS // 5, resident, failures)
            )
            for number in range(5)
        ]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        wait_for(lambda: server.figures()["specruntime_slots_active"] == 0)
        figures = server.figures()
    assert failures == []
    quarter = len(resident) // 4
    peaks = [max(resident[start : start + quarter]) for start in range(0, 4 * quarter, quarter)]
    record_property("resident_mb", [round(peak, 1) for peak in peaks])
    record_property("responses", sum(figures[name] for name in figures if "_responses_total" in name))
    record_property("tokens", figures["specruntime_tokens_total"])
    assert figures["specruntime_queue_length"] == figures["specruntime_slot_failures_total"] == 0
    assert peaks[3] <= 1.02 * peaks[1], peaks


def test_a_request_that_was_answered_is_booked_once(tiny_server: Running) -> None:
    before = tiny_server.scheduler.totals.tokens
    answer = tiny_server.client().completions.create(
        model="tiny-random", prompt="ab", max_tokens=9, temperature=0
    )
    assert answer.usage is not None
    assert tiny_server.scheduler.totals.tokens - before == answer.usage.completion_tokens
