"""How a worker talks to `run.py`: one JSON object a line, requests on stdin, answers on stdout.

Needs nothing but the standard library, since every worker runs in an environment of its own.

    request  {"ids": [...], "max_new_tokens": 128}
    answer   {"tokens": [...], "first_seconds": 0.1, "seconds": 1.5}   or   {"error": "..."}

The first line a worker writes says that it is ready: {"ready": true, "versions": {...}}, or why it cannot be.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter

Generate = Callable[[list[int], int], Iterable[int]]


def arguments() -> argparse.Namespace:
    """What `run.py` passes to every worker."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--mode", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--ends", type=json.loads, required=True, help="end token ids, as a JSON list")
    return parser.parse_args()


def serve(generate: Generate, ends: list[int], packages: Iterable[str]) -> None:
    """Answers requests until stdin ends. `generate` yields new tokens as they come, an end token included."""
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print to stdout
    _write(channel, {"ready": True, "versions": {name: _version(name) for name in packages}})
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = _answer(generate, request["ids"], request["max_new_tokens"], set(ends))
        except (
            Exception
        ) as error:  # one prompt that a system cannot answer is a result, not the end of the run
            answer = {"error": f"{type(error).__name__}: {error}"}
        _write(channel, answer)


def _answer(generate: Generate, ids: list[int], most: int, ends: set[int]) -> dict[str, object]:
    started = perf_counter()
    first, tokens = 0.0, []
    for token in _until_end(generate(ids, most), most, ends):
        if not tokens:
            first = perf_counter() - started
        tokens.append(int(token))
    return {"tokens": tokens, "first_seconds": first, "seconds": perf_counter() - started}


def _until_end(tokens: Iterable[int], most: int, ends: set[int]) -> Iterator[int]:
    for count, token in enumerate(tokens, start=1):
        yield token
        if token in ends or count >= most:
            return


def _write(channel: object, value: dict[str, object]) -> None:
    print(json.dumps(value), file=channel, flush=True)  # type: ignore[call-overload]


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
