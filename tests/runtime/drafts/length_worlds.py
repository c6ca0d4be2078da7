"""Worlds to try dynamic length in: what each draft would have accepted at each position, and what everything takes.

A text is a row of ids; a draft that is right about the first `agreed[t]` tokens after position t proposes those, then
wrong ones. Policies are charged the true times and see noisy ones.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from specruntime.drafts import NOTHING, Draft, Proposal, Room, Verdict
from specruntime.drafts.adaptive import LOOKUP_MEMORY, LOOKUP_PRIOR, TRAINED_PRIOR, AdaptiveDraft, Arm
from specruntime.drafts.lengths import Acceptance, StepTimes
from specruntime.sampling.params import SamplingParams
from specruntime.sampling.sampler import Sampler
from specruntime.statistics import EngineCounters

LONGEST = 16
GREEDY = cast(Sampler, SimpleNamespace(params=SamplingParams()))
DRAWN = cast(Sampler, SimpleNamespace(params=SamplingParams(accept="rejection", temperature=0.8)))


def agreement(rates: Callable[[int], float], length: int, seed: int) -> NDArray[np.int64]:
    """[length] how many of a draft's tokens after each position are right, each with the rate there."""
    drawn = np.random.default_rng(seed).random((length, LONGEST))
    return np.array([np.cumprod(drawn[t] < rates(t)).sum() for t in range(length)], dtype=np.int64)


@dataclass
class ScriptedDraft(Draft):
    """Proposes what `agreed` says, where -1 is finding nothing; takes `ms` for each token it drafts."""

    k: int
    agreed: NDArray[np.int64]
    ms: float = 0.0
    spent: float = 0.0
    counters: EngineCounters = field(default_factory=EngineCounters)
    asked: list[int] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    closed: bool = False

    def propose(self, tokens: NDArray[np.int64], room: Room, sampler: Sampler) -> Proposal:
        start, count = len(tokens), min(self.k, room.depth, room.nodes)
        self.asked.append(count)
        right = int(self.agreed[start])
        if right < 0 or count < 1:
            return NOTHING
        self.spent += self.ms * count
        ids = np.arange(start + 1, start + count + 1, dtype=np.int64)
        ids[min(right, count) :] = 0
        return Proposal(ids)

    def observe(self, verdict: Verdict) -> None:
        self.verdicts.append(verdict)

    def close(self) -> None:
        self.closed = True


@dataclass(frozen=True)
class Machine:
    """Milliseconds of a window by width, and how much what a policy sees differs from them."""

    verify: dict[int, float]
    noise: float = 0.05
    spikes: float = 0.02

    @property
    def plain(self) -> float:
        return self.verify[1]

    def width(self, nodes: int) -> int:
        return min(width for width in self.verify if width > nodes)

    def seen(self, ms: float, chance: np.random.Generator) -> float:
        """Seconds."""
        factor = float(np.exp(self.noise * chance.standard_normal()))
        return 1e-3 * ms * factor * (3.0 if chance.random() < self.spikes else 1.0)


def decode(
    draft: Draft, drafts: Sequence[ScriptedDraft], machine: Machine, length: int, seed: int = 0
) -> float:
    """True milliseconds for a text of `length` tokens after its prompt of one; `drafts` are those within `draft`."""
    words, chance = np.arange(1, length + LONGEST + 2, dtype=np.int64), np.random.default_rng(seed)
    done, total = 1, 0.0
    draft.observe(Verdict(0, None, 1, None, (), 1, 0.0, 0.0))
    while done <= length:
        depth = min(LONGEST, length - done)
        proposal = draft.propose(words[:done], Room(depth, LONGEST), GREEDY) if depth else NOTHING
        agreed = int(np.cumprod(proposal.ids == words[done : done + len(proposal.ids)]).sum())
        width = machine.width(len(proposal.ids))
        drafting, verifying = sum(d.spent for d in drafts), machine.verify[width]
        for each in drafts:
            each.spent = 0.0
        total += drafting + verifying
        seconds = machine.seen(drafting, chance), machine.seen(verifying, chance)
        path = tuple(range(1, agreed + 1))
        draft.observe(Verdict(done - 1, None, agreed + 1, proposal, path, width, *seconds))
        done += agreed + 1
    return total


def trained(draft: ScriptedDraft) -> Arm:
    """The arm of a draft that takes time."""
    sizes = range(1, draft.k + 1)
    return Arm(draft, Acceptance(draft.k, TRAINED_PRIOR), StepTimes({n: 1e-3 * draft.ms * n for n in sizes}))


def lookup(draft: ScriptedDraft) -> Arm:
    """The arm of a draft that proposes for nothing."""
    return Arm(draft, Acceptance(draft.k, LOOKUP_PRIOR, memory=LOOKUP_MEMORY), None)


def adaptive(machine: Machine, *arms: Arm) -> AdaptiveDraft:
    """As a bundle opens it whose times were measured on this machine."""
    return AdaptiveDraft(arms, StepTimes({width: 1e-3 * ms for width, ms in machine.verify.items()}))


def speed_up(
    arms: Callable[[ScriptedDraft], Arm],
    machine: Machine,
    agreed: NDArray[np.int64],
    *,
    k: int,
    ms: float,
    seed: int,
) -> float:
    """Of an adaptive draft of one arm, against plain decoding, in a session that has answered once before."""
    length = len(agreed) - 1
    draft = ScriptedDraft(k, agreement(lambda t: 0.5, 41, 1000 + seed), ms)
    policy = adaptive(machine, arms(draft))
    decode(policy, [draft], machine, 40, seed)
    draft.agreed = agreed
    return machine.plain * length / decode(policy, [draft], machine, length, seed)


def fixed_speed_up(machine: Machine, agreed: NDArray[np.int64], *, k: int, ms: float, seed: int) -> float:
    """Of always drafting k tokens."""
    length = len(agreed) - 1
    draft = ScriptedDraft(k, agreed, ms)
    return machine.plain * length / decode(draft, [draft], machine, length, seed)
