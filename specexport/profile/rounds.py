"""The rounds of a bundle's answers by phase, and how long a process waits for its first token."""

from dataclasses import dataclass, replace
from pathlib import Path

from specruntime import clock
from specruntime.bundle import LoadedBundle, open_bundle
from specruntime.check import prompt_ids
from specruntime.engines import EngineOptions
from specruntime.generation import complete, generate
from specruntime.sampling.params import SamplingParams
from specruntime.session import Session
from specruntime.statistics import Statistics


@dataclass(frozen=True)
class RoundProfile:
    """Sums over the check prompts' greedy answers, in milliseconds; prefill rounds are apart.

    `draft_ms`, `verify_ms` and `accept_ms` are the loop's phases, `commit_ms` what is left of a round; of them
    `draft_engine_ms` and `target_engine_ms` are spent inside engine calls, prefills included.
    """

    rounds: int
    tokens: int
    round_ms: float
    draft_ms: float
    verify_ms: float
    accept_ms: float
    prefill_ms: float
    target_engine_ms: float
    draft_engine_ms: float
    target_calls: dict[str, int]
    draft_calls: dict[str, int]
    open_ms: float
    first_token_ms: float

    @property
    def host_ms(self) -> float:
        """Time of all rounds, prefills included, outside engine calls."""
        return self.round_ms + self.prefill_ms - self.target_engine_ms - self.draft_engine_ms

    @property
    def host_percent(self) -> float:
        return 100 * self.host_ms / (self.round_ms + self.prefill_ms)


def profile_rounds(bundle: Path, options: EngineOptions, max_new_tokens: int) -> RoundProfile:
    """Answer the bundle's check prompts once, after a warm-up. Raises what opening and decoding raise."""
    started = clock.now()
    with open_bundle(bundle, options=options) as opened:
        session = opened.new_session()
        ready = clock.now()
        prompts = _prompts(opened)
        asked = clock.now()
        params = SamplingParams(max_tokens=max_new_tokens)
        complete(session, prompts[0], replace(params, max_tokens=1))
        answered = clock.now()
        every = [_answer(session, ids, params) for ids in prompts]
    return _sum_up(every, open_ms=1e3 * (ready - started), first_token_ms=1e3 * (answered - asked))


def _prompts(bundle: LoadedBundle) -> list[list[int]]:
    return [prompt_ids(bundle, prompt) for prompt in bundle.manifest.check.prompts] or [[0]]


@dataclass(frozen=True, slots=True)
class _Answered:
    """Statistics of a whole answer, and as they were after its prefill: all 0 for a prompt of one token."""

    stats: Statistics
    prefill: Statistics


def _answer(session: Session, ids: list[int], params: SamplingParams) -> _Answered:
    session.reset()
    deltas = generate(session, ids, params)
    next(deltas)
    prefill = replace(session.stats) if session.stats.prefills else Statistics()
    for _ in deltas:
        pass
    return _Answered(session.stats, prefill)


def _sum_up(answers: list[_Answered], *, open_ms: float, first_token_ms: float) -> RoundProfile:
    def after_prefill(name: str) -> float:
        """Milliseconds of the rounds that are no prefill: its draft, verify and accept are booked with theirs."""
        return 1e3 * sum(
            float(getattr(each.stats, name)) - float(getattr(each.prefill, name)) for each in answers
        )

    every = [each.stats for each in answers]
    calls: dict[str, dict[str, int]] = {"target": {}, "draft": {}}
    for stats in every:
        for role, counters in (("target", stats.target), ("draft", stats.draft)):
            for profile, count in counters.calls.items():
                calls[role][profile] = calls[role].get(profile, 0) + count
    return RoundProfile(
        rounds=sum(stats.rounds for stats in every),
        tokens=sum(stats.tokens for stats in every),
        round_ms=after_prefill("round_seconds"),
        draft_ms=after_prefill("draft_seconds"),
        verify_ms=after_prefill("verify_seconds"),
        accept_ms=after_prefill("accept_seconds"),
        prefill_ms=1e3 * sum(stats.prefill_seconds for stats in every),
        target_engine_ms=1e3 * sum(stats.target.seconds for stats in every),
        draft_engine_ms=1e3 * sum(stats.draft.seconds for stats in every),
        target_calls=calls["target"],
        draft_calls=calls["draft"],
        open_ms=open_ms,
        first_token_ms=first_token_ms,
    )
