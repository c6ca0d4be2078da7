"""What the sizes predicted best really reach: whole answers, in turns with plain decoding."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from specexport.errors import Interrupted
from specexport.tune.probing import Advance, SizedDraft
from specruntime.bundle import LoadedBundle
from specruntime.errors import EngineFailed
from specruntime.generation import TimedAnswer
from specruntime.sampling.params import SamplingParams
from specruntime.session import Session

ADAPTIVE = -1  # stands for the bundle's own dynamic length among the sizes


@dataclass(frozen=True, slots=True)
class Trial:
    """All prompts in one way to decode. The prompt's share of the time is left out, as in the prediction."""

    size: int  # drafted tokens a round; 0: plain, `ADAPTIVE`: as many as pay
    tokens_per_second: float
    acceptance_length: float
    speedup: float  # against plain decoding of the same prompts
    worst_speedup: float  # of the prompt that gained least

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


@dataclass(slots=True)
class _Clock:
    """One way's sums."""

    tokens: int = 0
    seconds: float = 0.0
    accepted: int = 0
    rounds: int = 0


def try_sizes(
    bundle: LoadedBundle,
    prompts: dict[str, list[int]],
    params: SamplingParams,
    sizes: Sequence[int],
    advance: Advance = lambda step: None,
) -> list[Trial]:
    """Plain decoding first, then `sizes`.

    Raises `EngineFailed` where drafts changed the answer of an fp32 bundle, `Interrupted` with the trials over those
    prompts that all ways had answered.
    """
    ways = [0, *sizes]
    sessions = {size: _session(bundle, size) for size in ways}
    clocks = {(size, name): _Clock() for size in ways for name in prompts}
    whole: list[str] = []
    try:
        for name, ids in prompts.items():
            answers = {}
            for size, session in sessions.items():
                advance(f"{bundle.manifest.name}: measuring {name}, {described(size)}")
                answers[size] = _answer(session, ids, params, clocks[size, name])
            if bundle.manifest.precision == "fp32" and any(answers[size] != answers[0] for size in ways):
                raise EngineFailed(
                    f"{bundle.manifest.name} answered prompt {name} differently with drafts than without; "
                    "run `specexport check` for where they part"
                )
            whole.append(name)
    except KeyboardInterrupt:
        raise Interrupted([_trial(size, clocks, whole) for size in ways if whole]) from None
    finally:
        for session in sessions.values():
            session.close()
    return [_trial(size, clocks, whole) for size in ways]


def described(size: int) -> str:
    """Return a way to decode in words."""
    return {0: "plain", ADAPTIVE: "dynamic length"}.get(size, f"{size} drafted")


def _session(bundle: LoadedBundle, size: int) -> Session:
    if size == 0:
        return bundle.new_session(speculate=False)
    if size == ADAPTIVE:
        return bundle.new_session()
    return bundle.new_session(dynamic=False, adapt=lambda draft: SizedDraft(draft, (size,)))


def _answer(session: Session, ids: list[int], params: SamplingParams, clock: _Clock) -> list[int]:
    session.reset()
    answer = TimedAnswer(session, ids, params)
    tokens = [token for delta in answer for token in delta.tokens]
    clock.tokens += max(len(tokens) - 1, 0)
    clock.seconds += answer.seconds - answer.first_seconds
    clock.accepted += session.stats.accepted
    clock.rounds += session.stats.rounds
    return tokens


def _trial(size: int, clocks: dict[tuple[int, str], _Clock], prompts: Sequence[str]) -> Trial:
    mine = [clocks[size, name] for name in prompts]
    plain = [clocks[0, name] for name in prompts]
    rounds = sum(clock.rounds for clock in mine)
    ratios = [
        (one.tokens / one.seconds) / (other.tokens / other.seconds)
        for one, other in zip(mine, plain, strict=True)
        if one.tokens and other.tokens
    ]
    return Trial(
        size=size,
        tokens_per_second=_speed(mine),
        acceptance_length=1 + sum(clock.accepted for clock in mine) / rounds if rounds else 1.0,
        speedup=_speed(mine) / _speed(plain) if _speed(plain) else 1.0,
        worst_speedup=min(ratios, default=1.0),
    )


def _speed(clocks: Sequence[_Clock]) -> float:
    seconds = sum(clock.seconds for clock in clocks)
    return sum(clock.tokens for clock in clocks) / seconds if seconds else 0.0
