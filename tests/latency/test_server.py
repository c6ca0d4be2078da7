"""What the server costs on top of the library: the same answers in turns, over loopback and in this process."""

import http.client
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import pytest

from specruntime import SamplingParams, generate
from specruntime.bundle import LoadedBundle

MESSAGES = [{"role": "user", "content": "Write a short story about a lighthouse keeper who finds a letter."}]
NEW_TOKENS = 96
TURNS = 7
Times = tuple[float, float]  # seconds to the first token, and of each further one


@pytest.fixture(scope="module")
def port(real_bundle: Path) -> Iterator[int]:
    command = [str(Path(sys.executable).with_name("specruntime")), "serve", str(real_bundle)]
    server = subprocess.Popen([*command, "--port", "0", "--slots", "1"], stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    started = json.loads(server.stderr.readline())
    threading.Thread(target=server.stderr.read, daemon=True).start()
    yield int(started["address"].rsplit(":", 1)[1])
    server.terminate()
    server.wait(60)


def of_library(bundle: LoadedBundle) -> Times:
    codec = bundle.tokenizer
    assert codec is not None
    session = bundle.new_session()
    params = SamplingParams(max_tokens=NEW_TOKENS, ignore_eos=True)
    started = perf_counter()
    first, tokens = 0.0, 0
    for delta in generate(session, codec.chat(MESSAGES), params, codec):
        first = first or perf_counter() - started
        tokens += len(delta.tokens)
    per_token = (perf_counter() - started - first) / (tokens - 1)
    session.close()
    return first, per_token


def of_server(port: int, model: str) -> Times:
    body = {"model": model, "messages": MESSAGES, "max_tokens": NEW_TOKENS, "temperature": 0}
    body |= {"stream": True, "ignore_eos": True}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    started = perf_counter()
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    assert response.status == 200
    first = last = 0.0
    while line := response.readline():
        if line.startswith(b"data: {"):
            last = perf_counter() - started
            first = first or last
    connection.close()
    return first, (last - first) / (NEW_TOKENS - 1)


@pytest.fixture(scope="module")
def turns(opened: LoadedBundle, port: int) -> tuple[list[Times], list[Times]]:
    """Of the library and of the server, in turns, after one of each that is not counted."""
    model = opened.manifest.name
    of_library(opened), of_server(port, model)
    measured = [(of_library(opened), of_server(port, model)) for _ in range(TURNS)]
    return [library for library, _ in measured], [server for _, server in measured]


def test_the_server_adds_little_to_the_first_token_and_to_each(
    benchmark: Any, turns: tuple[list[Times], list[Times]]
) -> None:
    def added() -> Times:
        library, server = turns
        first = median(times[0] for times in server) - median(times[0] for times in library)
        share = median(times[1] for times in server) / median(times[1] for times in library) - 1
        return first, share

    first, share = benchmark.pedantic(added)
    benchmark.extra_info.update(added_first_ms=1e3 * first, added_per_token=share)
    assert first < 0.020
    assert share < 0.05
