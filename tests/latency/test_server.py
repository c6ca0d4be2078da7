"""What the server costs on top of the library: the same answers in turns, each in a process of its own."""

import http.client
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import pytest

from specruntime.bundle import load_manifest
from tests.latency.server_process import serving

MESSAGES = [{"role": "user", "content": "Write a short story about a lighthouse keeper who finds a letter."}]
NEW_TOKENS = 96
TURNS = 7
Times = tuple[float, float]  # seconds to the first token, and of each further one

# One answer for each line of standard input. The session stays, as that of a server's slot does.
LIBRARY = """
import json, sys
from time import perf_counter
import specruntime
bundle = specruntime.open_bundle(sys.argv[1])
session, codec = bundle.new_session(), bundle.tokenizer
params = specruntime.SamplingParams(max_tokens=int(sys.argv[2]), ignore_eos=True)
for line in sys.stdin:
    started = perf_counter()
    first, tokens = 0.0, 0
    session.reset()
    for delta in specruntime.generate(session, codec.chat(json.loads(line)), params, codec):
        first = first or perf_counter() - started
        tokens += len(delta.tokens)
    per_token = (perf_counter() - started - first) / (tokens - 1)
    print(json.dumps([first, per_token]), flush=True)
"""


@pytest.fixture(scope="module")
def port(real_bundle: Path) -> Iterator[int]:
    """Neither side takes the prompt's rows over from the answer before."""
    with serving(real_bundle, "--slots", "1", "--prefix-caching", "off") as server:
        yield server.port


@pytest.fixture(scope="module")
def library(real_bundle: Path) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-c", LIBRARY, str(real_bundle), str(NEW_TOKENS)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process


def of_library(library: "subprocess.Popen[str]") -> Times:
    assert library.stdin is not None and library.stdout is not None
    library.stdin.write(json.dumps(MESSAGES) + "\n")
    library.stdin.flush()
    first, per_token = json.loads(library.stdout.readline())
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
def turns(real_bundle: Path, library: "subprocess.Popen[str]", port: int) -> tuple[list[Times], list[Times]]:
    """Of the library and of the server, in turns, after one of each that is not counted."""
    model = load_manifest(real_bundle, verify=False).name
    of_library(library), of_server(port, model)
    measured = [(of_library(library), of_server(port, model)) for _ in range(TURNS)]
    return [alone for alone, _ in measured], [served for _, served in measured]


def test_the_server_adds_little_to_the_first_token_and_to_each(
    benchmark: Any, turns: tuple[list[Times], list[Times]]
) -> None:
    def added() -> tuple[Times, Times]:
        alone, served = ((median(t[0] for t in times), median(t[1] for t in times)) for times in turns)
        return alone, served

    alone, served = benchmark.pedantic(added)
    first, share = served[0] - alone[0], served[1] / alone[1] - 1
    benchmark.extra_info.update(
        added_first_ms=1e3 * first, added_per_token=share, library=alone, server=served
    )
    assert first < 0.020
    assert share < 0.05
