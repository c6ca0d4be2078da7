"""`deploy ray` in a real Ray cluster of one machine: two replicas under load, one of them killed.

Ray brings sixty packages, so it gets an environment of its own, with nothing of the build host in it. Set
SPECEXPORT_RAY_PYTHON to the interpreter of one that is there.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from specexport.cli import main
from specruntime import SamplingParams, complete, open_bundle
from tests.e2e.environments import new_environment

DRIVE = Path(__file__).with_name("drive.py")
CLIENTS = 6

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ray_python(runtime_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with Ray and the runtime."""
    if given := os.environ.get("SPECEXPORT_RAY_PYTHON"):
        return Path(given)
    environment = new_environment(tmp_path_factory.mktemp("ray") / "venv")
    environment.install("ray[serve]", f"{runtime_wheel}[ort,server]")
    return environment.python


@pytest.fixture(scope="module")
def outcome(ray_python: Path, tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `drive.py` saw."""
    place = tmp_path_factory.mktemp("deployed") / "app"
    done = CliRunner().invoke(
        main, ["deploy", "ray", str(tiny_bundle), "-o", str(place), "--slots", "2", "--threads", "1"]
    )
    assert done.exit_code == 0, done.output
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    environment.pop("PYTHONPATH", None)
    driven = subprocess.run(
        [str(ray_python), str(DRIVE), str(place)],
        cwd=place.parent,
        env=environment,
        capture_output=True,
        text=True,
        timeout=550,
    )
    lines = [line for line in driven.stdout.splitlines() if line.startswith("{")]
    assert len(lines) == 1, f"{driven.stdout}\n{driven.stderr}"
    result: dict[str, Any] = json.loads(lines[0])
    return result


@pytest.mark.timeout(1200)
def test_a_killed_replica_loses_the_requests_it_held_and_no_other(outcome: dict[str, Any]) -> None:
    asked, (before, after) = outcome["asked"], outcome["killed"]
    lost = [request for request in asked if request["status"] != 200]
    assert len(lost) < CLIENTS  # the other replica held some
    assert all(request["began"] < after and request["ended"] > before for request in lost), lost
    assert sum(request["began"] > after for request in asked) > 0
    assert outcome["last"]["status"] == 200


def test_a_killed_replica_is_replaced(outcome: dict[str, Any]) -> None:
    before, after = set(outcome["before"]), set(outcome["after"])
    assert len(before) == len(after) == 2 and len(before & after) == 1


def test_every_answer_of_either_replica_is_the_librarys(outcome: dict[str, Any], tiny_bundle: Path) -> None:
    expected: dict[tuple[int, ...], str] = {}
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    with open_bundle(tiny_bundle, verify=False) as bundle:
        session = bundle.new_session(speculate=False)
        for request in outcome["asked"]:
            prompt = tuple(request["prompt"])
            if request["status"] == 200:
                if prompt not in expected:
                    session.reset()
                    expected[prompt] = complete(session, prompt, params, bundle.tokenizer).text
                assert request["text"] == expected[prompt]
    assert len(expected) > 1
