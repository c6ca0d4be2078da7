"""Many clients at once, and the end of a server: no client hangs, nothing is lost, doubled or out of order."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import openai
import pytest

from specruntime import SamplingParams, complete, open_bundle
from tests.runtime.server.conftest import Running, Serve, wait_for
from tests.runtime.server.http import completion, request_bytes

STREAMS = 200


async def raw_stream(port: int, body: dict[str, Any]) -> tuple[int, list[int], str | None]:
    """Status, token ids in the order they came, and the finish reason, read by hand to the end of the response."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        request_bytes(json.dumps(body).encode()).replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1)
    )
    raw = await reader.read()
    writer.close()
    head, _, text = raw.partition(b"\r\n\r\n")
    status = int(head.split(b" ")[1])
    ids: list[int] = []
    reason = None
    for line in text.decode().split("\n") if status == 200 else ():
        if "data: {" in line:
            chunk = json.loads(line[line.index("{") :])
            ids += [token["id"] for token in chunk["specruntime"]["tokens"]]
            reason = chunk["choices"][0]["finish_reason"] or reason
    return status, ids, reason


@pytest.mark.parametrize("batch", [1, 4])
def test_200_streams_at_once_are_answered_or_refused(serve: Serve, batch: int) -> None:
    server = serve(slots=4, queue_limit=100, batch=batch)
    random = Random(1)
    bodies = [
        completion(
            prompt=[random.randrange(90) for _ in range(random.randint(1, 30))],
            max_tokens=random.randint(1, 20),
            temperature=random.choice((0, 1)),
            seed=number,
            stream=True,
            include_authors=True,
        )
        for number in range(STREAMS)
    ]

    async def all_at_once() -> list[tuple[int, list[int], str | None]]:
        async with asyncio.timeout(500):
            return await asyncio.gather(*(raw_stream(server.port, body) for body in bodies))

    answers = asyncio.run(all_at_once())
    statuses = Counter(status for status, _, _ in answers)
    assert set(statuses) <= {200, 429} and statuses[200] >= 100, statuses
    for body, (status, ids, reason) in zip(bodies, answers, strict=True):
        if status == 200:
            params = SamplingParams(
                temperature=body["temperature"], seed=body["seed"], max_tokens=body["max_tokens"]
            )
            session = server.bundle.new_session(speculate=False)
            assert tuple(ids) == complete(session, body["prompt"], params).token_ids
            session.close()
            assert reason == "length"
    assert server.scheduler.occupancy().active == server.scheduler.occupancy().queued == 0
    assert server.scheduler.totals.refused["queue_full"] == statuses[429]


@pytest.mark.parametrize("batch", [1, 4])
def test_clients_of_every_kind_leave_nothing_behind(serve: Serve, batch: int) -> None:
    """A mix of whole answers, streams, clients that leave, and refusals."""
    server = serve(slots=3, queue_limit=50, capacity=400, batch=batch)
    outcomes: Counter[str] = Counter()
    counting = threading.Lock()

    def client(number: int) -> None:
        random = Random(number)
        kinds = 15 * ["whole", "stream", "leave", "wrong"]
        random.shuffle(kinds)
        for kind in kinds:
            body = completion(
                stream=kind in ("stream", "leave"), max_tokens=300 if kind == "leave" else 10,
                **({"temperature": 9} if kind == "wrong" else {}),
            )  # fmt: skip
            with server.connect() as connection:
                connection.sendall(
                    request_bytes(json.dumps(body).encode()).replace(
                        b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1
                    )
                )
                received = connection.recv(200)
                while kind != "leave" and (piece := connection.recv(65536)):
                    received += piece
            with counting:
                outcomes[f"{kind} {received.split(b' ')[1].decode()}"] += 1

    threads = [threading.Thread(target=client, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
        assert not thread.is_alive()
    assert set(outcomes) == {"whole 200", "stream 200", "leave 200", "wrong 422"}, outcomes
    wait_for(lambda: server.scheduler.occupancy().active == 0)
    totals = server.scheduler.totals
    asked = sum(count for name, count in outcomes.items() if "wrong" not in name)
    assert totals.ended.total() == asked
    assert totals.slot_failures == 0


@pytest.mark.slow
def test_sigterm_lets_a_stream_end_and_refuses_the_next(tiny_bundle: Path) -> None:
    script = str(Path(sys.executable).with_name("specruntime"))
    command = [script, "serve", str(tiny_bundle), "--port", "0", "--slots", "2", "--drain-timeout", "30"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        serving = json.loads(server.stderr.readline())
        assert serving["event"] == "serving"
        client = openai.OpenAI(
            base_url=f"{serving['address']}/v1", api_key="none", max_retries=0, timeout=300
        )
        stream = client.completions.create(
            model="tiny-random",
            prompt="abc",
            max_tokens=200,
            temperature=0,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        first = next(iter(stream))
        os.kill(server.pid, signal.SIGTERM)
        rest = list(stream)
        text = "".join(chunk.choices[0].text for chunk in (first, *rest))
        assert rest[-1].choices[0].finish_reason == "length"
        lines = [json.loads(line) for line in server.stderr.read().splitlines()]
        assert server.wait(120) == 0
        with pytest.raises(openai.APIConnectionError):
            client.models.list()
    finally:
        server.kill()
        server.wait()
    events = [line["event"] for line in lines]
    assert {"draining", "answered", "stopped"} <= set(events)
    assert "abc" not in str(lines)  # no prompt is logged
    with open_bundle(tiny_bundle, verify=False) as bundle:
        codec = bundle.tokenizer
        assert codec is not None
        params = SamplingParams(max_tokens=200, ignore_eos=True)
        assert text == complete(bundle.new_session(), codec.encode("abc"), params, codec).text


def test_the_address_that_is_taken_is_named(tiny_bundle: Path, tiny_server: Running) -> None:
    script = str(Path(sys.executable).with_name("specruntime"))
    command = [script, "serve", str(tiny_bundle), "--port", str(tiny_server.port)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert f"error: cannot listen on 127.0.0.1:{tiny_server.port}" in done.stderr
