"""One measured answer, and several of the same combined into one run by medians."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from specexport.bench.prompts import BenchPrompt
from specruntime.errors import EngineFailed
from specruntime.generation import Codec, TimedAnswer
from specruntime.sampling.params import SamplingParams
from specruntime.session import Session

Mode = (
    str  # "plain", "pytorch", "pytorch-compiled"; "speculative", or a bundle's name where there are several
)


@dataclass(frozen=True, slots=True)
class Measurement:
    """One answer. Counters are those of `specruntime.statistics`; PyTorch has steps for rounds."""

    token_ids: tuple[int, ...]
    first_seconds: float  # from the prompt's ids to the first token
    seconds: float  # from the prompt's ids to the last token
    rounds: int
    proposed: int = 0
    accepted: int = 0
    accepted_at: tuple[int, ...] = ()  # rounds that accepted a draft at this depth
    engine_seconds: float | None = None  # inside engine calls; None for PyTorch, which is not taken apart


@dataclass(frozen=True, slots=True)
class Run:
    """All repeats of one prompt in one mode; times are medians."""

    prompt: str
    category: str
    mode: Mode
    prompt_tokens: int
    new_tokens: int
    repeats: int
    ttft_ms: float
    total_ms: float
    tokens_per_second: float  # new tokens over the whole time, prefill included
    decode_tokens_per_second: float  # tokens after the first over the time after it
    rounds: int
    proposed: int
    accepted: int
    acceptance_length: float
    acceptance_by_position: tuple[float, ...]  # share of rounds that accepted a draft at depth 0, 1, ...
    host_percent: float | None  # of the whole time, outside engine calls; None for PyTorch
    output_sha256: str  # of the token ids

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


def measure_session(
    session: Session, ids: list[int], params: SamplingParams, codec: Codec | None
) -> Measurement:
    """Reset the session and answers once, text included, as a user would get it."""
    session.reset()
    answer = TimedAnswer(session, ids, params, codec)
    tokens = tuple(token for delta in answer for token in delta.tokens)
    stats = session.stats
    return Measurement(
        token_ids=tokens,
        first_seconds=answer.first_seconds,
        seconds=answer.seconds,
        rounds=stats.rounds,
        proposed=stats.proposed,
        accepted=stats.accepted,
        accepted_at=tuple(stats.accepted_at),
        engine_seconds=answer.engine_seconds,
    )


def combine(prompt: BenchPrompt, mode: Mode, prompt_tokens: int, repeats: Sequence[Measurement]) -> Run:
    """Raise `EngineFailed` when repeats of one prompt did not give the same tokens."""
    first = repeats[0]
    if any(other.token_ids != first.token_ids for other in repeats):
        raise EngineFailed(
            f"{mode} answered prompt {prompt.id} differently when asked again, expected equal tokens"
        )
    ttft, total = (median(getattr(m, name) for m in repeats) for name in ("first_seconds", "seconds"))
    decode = median(m.seconds - m.first_seconds for m in repeats)
    new_tokens = len(first.token_ids)
    return Run(
        prompt=prompt.id,
        category=prompt.category,
        mode=mode,
        prompt_tokens=prompt_tokens,
        new_tokens=new_tokens,
        repeats=len(repeats),
        ttft_ms=1e3 * ttft,
        total_ms=1e3 * total,
        tokens_per_second=new_tokens / total,
        decode_tokens_per_second=(new_tokens - 1) / decode if new_tokens > 1 else 0.0,
        rounds=first.rounds,
        proposed=first.proposed,
        accepted=first.accepted,
        acceptance_length=1 + first.accepted / first.rounds if first.rounds else 1.0,
        acceptance_by_position=tuple(count / first.rounds for count in first.accepted_at),
        host_percent=_host_percent(repeats),
        output_sha256=hashlib.sha256(json.dumps(first.token_ids).encode()).hexdigest(),
    )


def _host_percent(repeats: Sequence[Measurement]) -> float | None:
    shares = [100 * (1 - m.engine_seconds / m.seconds) for m in repeats if m.engine_seconds is not None]
    return median(shares) if shares else None
