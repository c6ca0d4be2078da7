"""200 streams at once on a real model: each is answered with the library's tokens or refused, and none hangs."""

import asyncio
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import pytest

from specexport.build import build
from specexport.recipe.schema import Recipe
from specruntime import LoadedBundle, SamplingParams, complete
from tests.latency.conftest import PROMPTS
from tests.latency.server_process import ServerProcess, serving

STREAMS, SLOTS, QUEUE, NEW_TOKENS = 200, 4, 64, 24
ASKED = [PROMPTS[name].prompt for name in ("chat", "story", "quote", "copy")]


@dataclass
class Answer:
    """What one client saw; seconds after its request."""

    status: int
    ids: tuple[int, ...]
    first: float
    ended: float
    retry_after: bool


async def stream(port: int, body: bytes) -> Answer:
    """One request by hand, read to the end of the response."""
    started = perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nConnection: close\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    status = int((await reader.readline()).split()[1])
    retry_after, ids, first, finished = False, list[int](), 0.0, False
    while line := await reader.readline():
        retry_after |= line.lower().startswith(b"retry-after:")
        if line.startswith(b"data: {"):
            first = first or perf_counter() - started
            chunk = json.loads(line[6:])
            ids += [token["id"] for token in chunk["specruntime"]["tokens"]]
        finished |= line.startswith(b"data: [DONE]")
    writer.close()
    assert finished == (status == 200)
    return Answer(status, tuple(ids), first, perf_counter() - started, retry_after)


def all_at_once(server: ServerProcess, model: str) -> list[Answer]:
    bodies = [
        json.dumps({
            "model": model, "messages": [{"role": "user", "content": ASKED[number % len(ASKED)]}], "stream": True,
            "max_tokens": NEW_TOKENS, "temperature": 0, "ignore_eos": True, "include_authors": True,
        }).encode()
        for number in range(STREAMS)
    ]  # fmt: skip

    async def ask() -> list[Answer]:
        async with asyncio.timeout(400):
            return await asyncio.gather(*(stream(server.port, body) for body in bodies))

    return asyncio.run(ask())


@pytest.mark.parametrize("rows", [1, SLOTS])
def test_200_streams_over_4_slots(
    benchmark: Any, recipe: Recipe, opened: LoadedBundle, tmp_path: Path, rows: int
) -> None:
    """`rows` is how many sequences one launch of the bundle holds."""
    codec = opened.tokenizer
    assert codec is not None
    session, expected = opened.new_session(), []
    for prompt in ASKED:
        session.reset()
        ids = codec.chat([{"role": "user", "content": prompt}])
        params = SamplingParams(max_tokens=NEW_TOKENS, ignore_eos=True)
        expected.append(complete(session, ids, params).token_ids)
    session.close()
    sizes = tuple(size for size in (1, 2, 4) if size <= rows)
    bundle = build(recipe.model_copy(update={"batch": sizes}), tmp_path / "bundle")
    with serving(bundle, "--slots", str(SLOTS), "--queue", str(QUEUE)) as server:
        all_at_once(server, recipe.name)
        before = server.resident_mb()
        started = perf_counter()
        answers = benchmark.pedantic(all_at_once, args=(server, recipe.name))
        seconds = perf_counter() - started
        grown = server.resident_mb() / before - 1
    statuses = Counter(answer.status for answer in answers)
    assert set(statuses) == {200, 429} and statuses[200] >= SLOTS + QUEUE, statuses
    for number, answer in enumerate(answers):
        if answer.status == 200:
            assert answer.ids == expected[number % len(ASKED)]
        else:
            assert answer.retry_after
    answered = [answer for answer in answers if answer.status == 200]
    refused = [answer for answer in answers if answer.status != 200]
    benchmark.extra_info.update(
        statuses=dict(statuses),
        seconds=seconds,
        tokens_per_second=sum(len(answer.ids) for answer in answered) / seconds,
        first_seconds={"median": median(a.first for a in answered), "last": max(a.first for a in answered)},
        refused_seconds={"median": median(a.ended for a in refused), "last": max(a.ended for a in refused)},
        resident_growth=grown,
    )
    assert grown < 0.02
