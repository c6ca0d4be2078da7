"""What was written for another serving system, loaded as a module, and what its answers are compared with."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from specruntime import SamplingParams, complete, open_bundle
from specruntime.serving import BatchStepper, Scheduler


def load(name: str, path: Path) -> ModuleType:
    specification = importlib.util.spec_from_file_location(name, path)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def alone(bundle: Path, prompt: Sequence[int], max_tokens: int) -> tuple[list[int], int]:
    """The greedy tokens of one session of the library, and how many engine calls they took."""
    with open_bundle(bundle, verify=False) as opened:
        session = opened.new_session()
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        tokens = list(complete(session, prompt, params).token_ids)
        calls = (*session.stats.target.calls.values(), *session.stats.draft.calls.values())
        return tokens, sum(calls)


def launches_of(scheduler: Scheduler) -> int:
    """Engine launches of the batches so far; fails where the slots are no lanes of batches."""
    stepper = scheduler._stepper
    assert isinstance(stepper, BatchStepper)
    return sum(batch.launches for batch in stepper.batches)
