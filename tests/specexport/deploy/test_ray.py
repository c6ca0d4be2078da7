"""The Ray application's replica over a stand-in of Ray's decorators; tests/e2e/ray runs it in a real cluster."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

from specexport.cli import main
from specruntime import SamplingParams
from specruntime.serving import Delivery, SessionStepper, Work, collect
from tests.specexport.deploy.served import alone, launches_of, load

PROMPTS = ([97, 98, 99, 97, 98, 99], [100, 101, 100, 101])
TOKENS = 60


class _Serve(ModuleType):
    """`ray.serve` as far as the application uses it."""

    def deployment(self, decorated: Any) -> Any:
        decorated.bind = classmethod(lambda cls: cls)
        return decorated

    def ingress(self, build_app: Callable[[], Any]) -> Callable[[Any], Any]:
        def decorate(decorated: Any) -> Any:
            decorated.build_app = staticmethod(build_app)
            return decorated

        return decorate


@contextmanager
def replica(bundle: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The replica of a deployment, in the environment that its serve.yaml sets."""
    done = CliRunner().invoke(
        main, ["deploy", "ray", str(bundle), "-o", str(place), "--slots", "2", "--prefix-caching", "off"]
    )
    assert done.exit_code == 0, done.output
    config = yaml.safe_load((place / "serve.yaml").read_text())
    (deployment,) = config["applications"][0]["deployments"]
    for name, value in deployment["ray_actor_options"]["runtime_env"]["env_vars"].items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))
    monkeypatch.setattr(sys.modules["ray"], "serve", _Serve("ray.serve"), raising=False)
    application = load("specruntime_app_of_the_test", place / "specruntime_app.py")
    made = application.Server.build_app().state.replica
    try:
        yield made
    finally:
        made.scheduler.close()
        made.bundle.close()


def answers(replica: Any) -> list[list[int]]:
    params = SamplingParams(max_tokens=TOKENS, ignore_eos=True)
    events = collect(replica.scheduler, [Work(np.array(ids), params) for ids in PROMPTS])
    assert all(isinstance(event, Delivery) for answer in events for event in answer)
    return [[token for event in answer for token in event.delta.tokens] for answer in events]


def test_a_bundle_with_batch_widths_is_served_in_batches(
    batched_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with replica(batched_bundle, tmp_path / "app", monkeypatch) as made:
        launches = launches_of(made.scheduler)
        found = answers(made)
        together = launches_of(made.scheduler) - launches
    single = [alone(batched_bundle, ids, TOKENS) for ids in PROMPTS]
    assert found == [tokens for tokens, _ in single]
    assert together < 0.8 * sum(calls for _, calls in single), "launches are shared"


def test_a_bundle_for_one_sequence_is_served_in_sessions(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with replica(tiny_bundle, tmp_path / "app", monkeypatch) as made:
        assert type(made.scheduler._stepper) is SessionStepper and made.scheduler._stepper.slots == 2
        assert not made.scheduler._stepper._prefixes.on
        assert answers(made) == [alone(tiny_bundle, ids, TOKENS)[0] for ids in PROMPTS]
    assert os.environ["SPECRUNTIME_BUNDLE"] == str(tmp_path / "app" / "bundle")
