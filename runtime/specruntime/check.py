"""Does speculation change the output? A bundle's check prompts, decoded with and without drafts.

Owns what counts as equal. fp32, and every format whose products and attention run on the operators of
specruntime-kernels: every token, greedy and sampled. Below fp32 other kernels round differently at different window
widths, so every token is compared at one width with and without drafts; against width 1 a greedy answer may
part where the two best logits lie closer than what the width alone changes, and that is reported.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from specruntime.bundle import LoadedBundle
from specruntime.drafts import Draft
from specruntime.drafts.wrappers import FullWidthDraft
from specruntime.errors import InvalidArgument
from specruntime.generation import Completion, complete
from specruntime.manifest.schema import CheckPrompt
from specruntime.sampling.params import SamplingParams
from specruntime.sampling.sampler import TokenLogprobs
from specruntime.session import Session
from specruntime.trace import RoundTrace, Trace, render_round


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where an answer first left the one it should equal. A token is None where its answer had already ended."""

    position: int  # in the answer
    expected: int | None
    found: int | None
    logit_gap: float | None  # between the two best tokens of the plain run there; None past its end
    width_difference: float | None = (
        None  # what the window's width alone changes in a logprob; below fp32 only
    )
    excused: bool = False


@dataclass(frozen=True, slots=True)
class Comparison:
    """One answer against the one it should equal."""

    prompt: str
    law: str  # "greedy" or "sampled"
    against: str
    tokens: int  # of the expected answer
    acceptance_length: float | None  # of the answer that was judged; None where nothing could draft
    divergence: Divergence | None

    @property
    def passed(self) -> bool:
        return self.divergence is None or self.divergence.excused


@dataclass(frozen=True, slots=True)
class TracedComparison:
    """The round in which two answers to a check prompt part, and the plain rounds of the same tokens.

    Where they do not differ: the last round. `plain` ends with the round of the token at which they differ.
    """

    prompt: str
    law: str
    against: str
    position: int | None  # in the answer; None where they do not differ
    expected: int | None  # None past the end of the answer
    found: int | None
    speculative: RoundTrace
    plain: tuple[RoundTrace, ...]

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class CheckReport:
    bundle: str
    comparisons: tuple[Comparison, ...]

    @property
    def passed(self) -> bool:
        return all(comparison.passed for comparison in self.comparisons)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "bundle": self.bundle,
            "passed": self.passed,
            "comparisons": [_as_dict(comparison) for comparison in self.comparisons],
        }


def render_check(report: CheckReport) -> str:
    """Return the report as lines for people, the verdict last."""
    passed = sum(comparison.passed for comparison in report.comparisons)
    verdict = f"{passed} of {len(report.comparisons)} answers match"
    return "\n".join([*(_render(comparison) for comparison in report.comparisons), verdict])


def _render(comparison: Comparison) -> str:
    verdict = "equal to" if comparison.divergence is None else "differs from"
    line = f"{comparison.prompt:12} {comparison.law:8} {comparison.tokens:4} tokens {verdict} {comparison.against}"
    if comparison.acceptance_length is not None:
        line += f", {comparison.acceptance_length:.2f} tokens a round"
    if (divergence := comparison.divergence) is None:
        return line
    gap = "none" if divergence.logit_gap is None else f"{divergence.logit_gap:.3g}"
    expected, found = ("its end" if t is None else t for t in (divergence.expected, divergence.found))
    line += f" at token {divergence.position}: expected {expected}, found {found}"
    line += f", logit gap {gap}"
    if divergence.width_difference is not None:
        line += f", the width alone changes {divergence.width_difference:.3g}"
    return line + (" (excused)" if divergence.excused else "")


def _as_dict(comparison: Comparison) -> dict[str, Any]:
    return {**asdict(comparison), "passed": comparison.passed}


LAWS = {"greedy": SamplingParams(), "sampled": SamplingParams(temperature=0.8, top_p=0.95, seed=1)}
_COMPARED_LOGITS = 20

Advance = Callable[[str], None]


def check_steps(bundle: LoadedBundle) -> int:
    """How often `check_bundle` calls `advance`."""
    return len(bundle.manifest.check.prompts) * len(LAWS)


def check_bundle(
    bundle: LoadedBundle, *, max_new_tokens: int | None = None, advance: Advance = lambda step: None
) -> CheckReport:
    """Compare speculative with plain decoding on every check prompt; `max_new_tokens` replaces the bundle's own.

    Raises `InvalidArgument` for a bundle without check prompts, and what decoding raises.
    """
    checker = Checker(bundle, max_new_tokens)
    comparisons: list[Comparison] = []
    for prompt in bundle.manifest.check.prompts:
        for law in LAWS:
            advance(f"{prompt.id}, {law}")
            comparisons += checker.compare(prompt, law)
    return CheckReport(bundle.manifest.name, tuple(comparisons))


class Checker:
    """The sessions that answer a bundle's check prompts. They close with the bundle."""

    def __init__(self, bundle: LoadedBundle, max_new_tokens: int | None = None) -> None:
        manifest = bundle.manifest
        if not manifest.check.prompts:
            raise InvalidArgument(
                f"{manifest.name} has no check prompts: add `check.prompts` to its recipe and build it"
            )
        self._bundle = bundle
        self.max_new_tokens = manifest.check.max_new_tokens if max_new_tokens is None else max_new_tokens
        self._exact = manifest.precision == "fp32" or bundle.rows_are_exact
        self._widths = sorted(p.width for p in manifest.target.profiles if p.rows == p.width > 1)
        self._k = max(self._widths, default=1) - 1

    @cached_property
    def _plain(self) -> Session:
        return self._bundle.new_session(speculate=False)

    @cached_property
    def _speculative(self) -> Session:
        return self._bundle.new_session()

    @cached_property
    def _empty_wide(self) -> Session:
        return self._session_at(self._k + 1, speculate=False)

    @cached_property
    def _drafting_wide(self) -> Session:
        return self._session_at(self._k + 1, speculate=True)

    def _session_at(self, width: int, *, speculate: bool, trace: Trace | None = None) -> Session:
        """Return a session whose windows are `width` wide while the cache and the answer's limit have room."""

        def widen(draft: Draft) -> FullWidthDraft:
            return FullWidthDraft(draft, width - 1)

        return self._bundle.new_session(speculate=speculate, adapt=widen, trace=trace)

    def compare(self, prompt: CheckPrompt, law: str) -> list[Comparison]:
        """One comparison where rows are exact, up to two elsewhere."""
        ids = prompt_ids(self._bundle, prompt)
        params = replace(LAWS[law], max_tokens=self.max_new_tokens)
        if self._exact:
            return [self._against_plain(prompt.id, law, ids, params)]
        widened = self._at_one_width(prompt.id, law, ids, params)
        return [widened, self._against_plain(prompt.id, law, ids, params)] if law == "greedy" else [widened]

    def plain_answer(self, prompt: CheckPrompt) -> tuple[list[int], Completion]:
        """Ids of the prompt, and its greedy plain answer."""
        ids = prompt_ids(self._bundle, prompt)
        return ids, _answer(self._plain, ids, self.greedy)

    def diverge(
        self,
        ids: list[int],
        params: SamplingParams,
        expected: Sequence[int],
        found: Sequence[int],
        session: Session | None = None,
    ) -> Divergence | None:
        """Return the first difference, with the logit gap there in the run without drafts; never excused.

        `session` decodes that run; the plain one where it is not given.
        """
        position = first_difference(expected, found)
        if position is None:
            return None
        probe = replace(params, logprobs=2)
        rows = _answer(session or self._plain, ids, probe).logprobs or ()
        gap = rows[position].top[0][1] - rows[position].top[1][1] if position < len(rows) else None
        return Divergence(position, _at(expected, position), _at(found, position), gap)

    @property
    def greedy(self) -> SamplingParams:
        return replace(LAWS["greedy"], max_tokens=self.max_new_tokens)

    def _against_plain(self, prompt: str, law: str, ids: list[int], params: SamplingParams) -> Comparison:
        expected = _answer(self._plain, ids, params)
        found = _answer(self._speculative, ids, params)
        divergence = self.diverge(ids, params, expected.token_ids, found.token_ids)
        if divergence is not None and not self._exact:
            divergence = self._excuse(ids, divergence)
        return Comparison(prompt, law, "plain", len(expected.token_ids), self._acceptance(found), divergence)

    def _at_one_width(self, prompt: str, law: str, ids: list[int], params: SamplingParams) -> Comparison:
        """With drafts and without, every window at its widest: the limit would narrow the last ones, so it is moved."""
        moved = replace(params, max_tokens=self.max_new_tokens + self._k)
        expected = _answer(self._empty_wide, ids, moved).token_ids[: self.max_new_tokens]
        found = _answer(self._drafting_wide, ids, moved)
        cut = found.token_ids[: self.max_new_tokens]
        divergence = self.diverge(ids, moved, expected, cut, self._empty_wide)
        against = f"plain at width {self._k + 1}"
        return Comparison(prompt, law, against, len(expected), self._acceptance(found), divergence)

    def _excuse(self, ids: list[int], divergence: Divergence) -> Divergence:
        """Excused where the two best logits lie closer than what a window's width alone changes on the way there."""
        difference = max(
            (self._width_difference(ids, width, divergence) for width in self._widths), default=0.0
        )
        close = divergence.logit_gap is not None and divergence.logit_gap < difference
        return replace(divergence, width_difference=difference, excused=close)

    def _width_difference(self, ids: list[int], width: int, divergence: Divergence) -> float:
        """Largest change of a logprob between width 1 and `width`, no drafts in either, up to the divergence."""
        wide_session = self._session_at(width, speculate=False)
        probe = SamplingParams(max_tokens=divergence.position + width, logprobs=_COMPARED_LOGITS)
        try:
            narrow, wide = _answer(self._plain, ids, probe), _answer(wide_session, ids, probe)
        finally:
            wide_session.close()
        return _largest_difference(narrow, wide, divergence.position + 1)

    def trace(self, prompt: CheckPrompt, law: str) -> list[TracedComparison]:
        """As `compare`, with the round in which the two answers part."""
        params = replace(LAWS[law], max_tokens=self.max_new_tokens)
        traced = []
        if not self._exact:
            width = self._k + 1
            moved = replace(params, max_tokens=self.max_new_tokens + self._k)
            traced.append(self._trace_against(f"plain at width {width}", prompt, law, moved, width))
        if self._exact or law == "greedy":
            traced.append(self._trace_against("plain", prompt, law, params, None))
        return traced

    def _trace_against(
        self, against: str, prompt: CheckPrompt, law: str, params: SamplingParams, width: int | None
    ) -> TracedComparison:
        ids = prompt_ids(self._bundle, prompt)
        expected, plain = self._traced_answer(ids, params, width, speculate=False)
        found, speculative = self._traced_answer(ids, params, width, speculate=True)
        position = first_difference(expected, found)
        last = max(len(found) - 1, 0) if position is None else position
        parted = _rounds_from(speculative, last, last)[-1]
        before = _rounds_from(plain, min(parted.position, last), last)
        return TracedComparison(
            prompt.id,
            law,
            against,
            position,
            None if position is None else _at(expected, position),
            None if position is None else _at(found, position),
            parted,
            before,
        )

    def _traced_answer(
        self, ids: list[int], params: SamplingParams, width: int | None, *, speculate: bool
    ) -> tuple[list[int], list[RoundTrace]]:
        """Return the answer, cut to the bundle's length, and its rounds; at one `width` where it is given."""
        rounds: list[RoundTrace] = []
        session = (
            self._bundle.new_session(speculate=speculate, trace=rounds.append)
            if width is None
            else self._session_at(width, speculate=speculate, trace=rounds.append)
        )
        try:
            return list(_answer(session, ids, params).token_ids[: self.max_new_tokens]), rounds
        finally:
            session.close()

    def _acceptance(self, answer: Completion) -> float | None:
        return answer.stats.acceptance_length if self._bundle.manifest.draft.nodes else None


def prompt_ids(bundle: LoadedBundle, prompt: CheckPrompt) -> list[int]:
    """Token ids of a check prompt. Raises `InvalidArgument` for text in a bundle that has no tokenizer."""
    if prompt.ids is not None:
        return list(prompt.ids)
    codec = bundle.tokenizer
    if codec is None or prompt.text is None:
        raise InvalidArgument(
            f"check prompt {prompt.id} is text, this bundle has no tokenizer: give token ids instead"
        )
    return (
        codec.chat([{"role": "user", "content": prompt.text}]) if prompt.chat else codec.encode(prompt.text)
    )


def first_difference(expected: Sequence[int], found: Sequence[int]) -> int | None:
    """Return the first index at which they differ, an early end included; None when equal."""
    for index, (one, other) in enumerate(zip(expected, found, strict=False)):
        if one != other:
            return index
    return None if len(expected) == len(found) else min(len(expected), len(found))


def _answer(session: Session, ids: list[int], params: SamplingParams) -> Completion:
    session.reset()
    return complete(session, ids, params)


def _at(ids: Sequence[int], position: int) -> int | None:
    return ids[position] if position < len(ids) else None


def _largest_difference(one: Completion, other: Completion, rows: int) -> float:
    """Largest change of a logprob over the first `rows`, and no further than where the answers part."""
    parted = first_difference(one.token_ids, other.token_ids)
    shared = rows if parted is None else min(rows, parted + 1)
    pairs = list(zip(one.logprobs or (), other.logprobs or (), strict=False))[:shared]
    return max((_row_difference(a, b) for a, b in pairs), default=0.0)


def _row_difference(one: TokenLogprobs, other: TokenLogprobs) -> float:
    others = dict(other.top)
    return max((abs(value - others[token]) for token, value in one.top if token in others), default=0.0)


def trace_prompt(
    bundle: LoadedBundle, prompt_id: str, *, max_new_tokens: int | None = None
) -> list[TracedComparison]:
    """Return the answers that `check_bundle` compares for one check prompt, followed round by round.

    Raises `InvalidArgument` for a prompt that the bundle does not have, and what decoding raises.
    """
    prompts = {prompt.id: prompt for prompt in bundle.manifest.check.prompts}
    if prompt_id not in prompts:
        known = ", ".join(prompts) or "none"
        raise InvalidArgument(f"found no check prompt {prompt_id!r}, this bundle has: {known}")
    checker = Checker(bundle, max_new_tokens)
    return [found for law in LAWS for found in checker.trace(prompts[prompt_id], law)]


def render_traces(traces: Sequence[TracedComparison]) -> str:
    """Return the comparisons as text for people, each with its rounds."""
    return "\n\n".join(_render_trace(trace) for trace in traces)


def _render_trace(trace: TracedComparison) -> str:
    head = f"{trace.prompt} {trace.law}, with drafts against {trace.against}: "
    if trace.position is None:
        head += "the answers do not differ; the last round"
    else:
        expected, found = ("its end" if t is None else t for t in (trace.expected, trace.found))
        head += f"they part at token {trace.position}, expected {expected}, found {found}"
    rounds = [render_round(trace.speculative), f"{trace.against}:", *map(render_round, trace.plain)]
    return "\n".join([head, *rounds])


def _rounds_from(rounds: Sequence[RoundTrace], first: int, last: int) -> tuple[RoundTrace, ...]:
    """Return the rounds that emitted the tokens `first` to `last` of an answer, or its last round."""
    found = [each for each in rounds if each.position <= last and first < each.position + len(each.tokens)]
    return tuple(found or rounds[-1:])
