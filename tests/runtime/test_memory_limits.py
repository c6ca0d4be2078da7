"""A process that may take no more memory, wherever it notices: a refusal that says so, and what is open lives."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

# Megabytes that the process may still take. Below one, libraries abort instead of failing.
ROOM = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)
PROGRAM = """
import json, resource, sys
import specruntime as s
from specruntime.serving import BatchStepper, SessionStepper
place, stage, rooms = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
options = s.EngineOptions(threads=2, copy_weights=stage == "copy")

def limited(room, work):
    size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + room * 2**20, resource.RLIM_INFINITY))
    try:
        return work()
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

def answer(session):
    params = s.SamplingParams(max_tokens=6, ignore_eos=True)
    return list(s.complete(session, [97, 98, 99] * 20, params).token_ids)

def opened():
    return s.open_bundle(place, options=options)

with opened() as bundle:
    expected = answer(bundle.new_session())
    assert bundle.tokenizer is not None
    outcomes = {}
    for room in rooms:
        try:
            if stage in ("open", "copy"):
                limited(room, opened).close()
            elif stage == "sessions":
                limited(room, lambda: SessionStepper(bundle, 400)).close()
            elif stage == "batches":
                limited(room, lambda: BatchStepper(bundle, 60)).close()
            else:
                session = bundle.new_session()
                assert limited(room, lambda: answer(session)) == expected
            outcomes[room] = "ok"
        except MemoryError as error:
            outcomes[room] = f"{type(error).__name__}: {error}"
    assert answer(bundle.new_session()) == expected
    print(json.dumps(outcomes))
"""


def told(bundle: Path, stage: str) -> Mapping[str, str]:
    """By room: `ok`, or the refusal."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(bundle), stage, json.dumps(ROOM)],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("stage", ["open", "copy", "sessions", "batches"])
def test_what_does_not_fit_is_refused_with_the_cure_and_the_rest_lives(
    batched_bundle: Path, stage: str
) -> None:
    found = told(batched_bundle, stage)
    refused = [words for words in found.values() if words != "ok"]
    assert refused and found[str(ROOM[-1])] == "ok"
    for words in refused:
        assert words.startswith("OutOfMemory: ") and (
            "close" in words or "fewer" in words or "lower" in words
        ), words


def test_an_answer_within_any_limit_is_whole_or_refused(batched_bundle: Path) -> None:
    found = told(batched_bundle, "answer")
    assert found[str(ROOM[-1])] == "ok"
