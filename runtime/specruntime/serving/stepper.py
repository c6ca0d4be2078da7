"""What the scheduler needs of an engine: slots that are filled, stepped together and emptied.

One protocol for sessions that take their rounds in turn and for an engine that launches all rows at once: how a step
is carried out, and which prompts are fed in it, is the stepper's own business.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from specruntime.generation import Delta
from specruntime.sampling.params import SamplingParams
from specruntime.verify import Round


@dataclass(frozen=True, slots=True)
class Work:
    """What is asked for: an answer to token ids [n]. Made by `Stepper.check`, so that it can be admitted as it is."""

    prompt: NDArray[np.int64]
    params: SamplingParams
    speculate: bool = True
    # Special tokens that are part of the text, by name.
    shown: Mapping[int, str] = field(default_factory=dict)
    # The same for answers to one prompt, which share its rows; None: it is the only one.
    group: object = None

    def seeded(self) -> "Work":
        """Itself with a seed: the one of its params, or a drawn one."""
        return replace(self, params=self.params.seeded())


def works_of(work: Work, count: int) -> list[Work]:
    """Return `count` answers to one prompt: each has a seed of its own (`SamplingParams.of_answer`)."""
    if count == 1:
        return [replace(work, params=work.params.of_answer(0))]
    seeded, group = work.params.seeded(), object()
    return [replace(work, params=seeded.of_answer(index), group=group) for index in range(count)]


@dataclass(slots=True)
class Seconds:
    """Where the time of one turn went, by phase; `prefill` is the whole turn of a prompt.

    Of a launch that turns share each has the whole time, of waiting for each other none.
    """

    prefill: float = 0.0
    draft: float = 0.0
    verify: float = 0.0
    accept: float = 0.0
    other: float = 0.0


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn did for one slot: fed a chunk of its prompt, committed a round, or failed."""

    slot: int
    delta: Delta | None = None  # None: the prompt goes on, or `error`
    round: Round | None = None  # whose tokens the delta is of
    error: Exception | None = None
    cached: int = 0  # of a slot's first turn: tokens of its prompt whose cache rows were there already
    seconds: Seconds = field(default_factory=Seconds)


class Stepper(Protocol):
    """Slots over one engine. Called from one thread at a time; `check` from any thread at any time."""

    slots: int
    capacity: int  # rows of one slot's KV cache

    def check(self, work: Work) -> Work:
        """Return the work as `admit` takes it. Raises `EmptyPrompt`, `InvalidArgument` or `CapacityExceeded`."""
        ...

    def choose(self, free: Sequence[int], work: Work) -> int:
        """Which of some empty slots, one at least, the work should be admitted to. Called between steps."""
        ...

    def admit(self, slot: int, work: Work) -> None:
        """Fill an empty slot; run nothing yet. Raises what the engine raises for it; the slot stays empty then."""
        ...

    def step(self) -> Iterator[Turn]:
        """One round for every slot that decodes, and one chunk of the prompt that waits longest.

        Turns come as they are done, each slot at most once. A slot whose turn failed or ended its answer is evicted
        before the next step, while this one goes on at the earliest.
        """
        ...

    def evict(self, slot: int) -> None:
        """Empty a slot, whatever its state. Raises when it can never be filled again."""
        ...

    def rows(self) -> int:
        """KV rows that hold tokens of admitted work."""
        ...

    def close(self) -> None:
        """Free the slots' buffers. Idempotent."""
        ...
