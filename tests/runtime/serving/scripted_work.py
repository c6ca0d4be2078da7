"""Work for a scheduler over a scripted bundle, and what it is compared with."""

import threading
import time
from collections.abc import Callable
from random import Random

import numpy as np

from specruntime import SamplingParams, complete
from specruntime.bundle import LoadedBundle
from specruntime.serving import Delivery, Work
from tests.runtime.scripted_bundle import ScriptedEngine
from tests.runtime.scripted_engine import VOCAB

PROMPT = (3, 5, 3, 5, 3)


def work(
    prompt: tuple[int, ...] = PROMPT, *, speculate: bool = True, max_tokens: int | None = 12, seed: int = 0
) -> Work:
    temperature = 0.0 if seed == 0 else 1.0
    params = SamplingParams(temperature=temperature, seed=seed, max_tokens=max_tokens)
    return Work(np.array(prompt), params, speculate)


def tokens_of(deliveries: list[Delivery]) -> list[int]:
    return [token for delivery in deliveries for token in delivery.delta.tokens]


def alone(bundle: LoadedBundle, asked: Work) -> list[int]:
    """What a session of its own answers, plainly."""
    session = bundle.new_session(speculate=False)
    answer = complete(session, asked.prompt, asked.params)
    session.close()
    return list(answer.token_ids)


def wait_for(condition: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.001)


def prompts(count: int, longest: int = 40) -> list[tuple[int, ...]]:
    random = Random(7)
    return [tuple(random.randrange(VOCAB) for _ in range(random.randint(1, longest))) for _ in range(count)]


class Gate:
    """Holds the engine after `free` runs until it is opened."""

    def __init__(self, engine: ScriptedEngine, *, free: int = 0) -> None:
        self.runs = 0
        self._free = free
        self._open = threading.Event()
        engine.failing = self._pass

    def _pass(self, context: int) -> bool:
        self.runs += 1
        assert self.runs <= self._free or self._open.wait(120)
        return False

    def open(self) -> None:
        self._open.set()
