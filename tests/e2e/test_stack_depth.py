"""How deep the code goes: frames of this project between a served round and the engine."""

import sys
from types import FrameType
from typing import Any

import numpy as np
import pytest

from specruntime.batches.lanes import Lane
from specruntime.engines.onnx_batch import OrtBatch
from specruntime.sampling.params import SamplingParams
from specruntime.serving import BatchStepper, Scheduler, Work, collect
from tests.e2e.conftest import Opened

FRAMES = 20


def project_frames(frame: FrameType | None) -> list[str]:
    """Functions of the runtime on the stack, the innermost first."""
    found = []
    while frame is not None:
        if "specruntime" in frame.f_code.co_filename and "/tests/" not in frame.f_code.co_filename:
            found.append(frame.f_code.co_qualname)
        frame = frame.f_back
    return found


def test_a_served_batched_eagle_round_is_not_deep(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    stacks: dict[str, list[str]] = {}

    def watched(owner: type, name: str) -> None:
        run: Any = getattr(owner, name)

        def call(self: Any, *arguments: Any, **named: Any) -> Any:
            found, kept = project_frames(sys._getframe(1)), stacks.get(owner.__name__, [])
            stacks[owner.__name__] = max(found, kept, key=len)
            return run(self, *arguments, **named)

        monkeypatch.setattr(owner, name, call)

    watched(OrtBatch, "run")
    watched(Lane, "run")
    bundle = opened("eagle3")
    with Scheduler(BatchStepper(bundle, 2)) as scheduler:
        params = SamplingParams(max_tokens=12, ignore_eos=True)
        prompts = [np.array([97 + n, 98, 99, 97, 98]) for n in range(2)]
        collect(scheduler, [Work(prompt, params) for prompt in prompts])
    assert {name: len(stack) for name, stack in stacks.items() if len(stack) > FRAMES} == {}
