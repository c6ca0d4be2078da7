"""Does speculation change the output? A bundle's check prompts, decoded with and without drafts.

Owns what counts as equal. fp32: every token, greedy and sampled. Below fp32 kernels round differently at different
window widths, so every token is compared at one width with and without drafts; against width 1 a greedy answer may
part where the two best logits lie closer than what the width alone changes, and that is reported.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from specruntime.bundle import LoadedBundle
from specruntime.drafts import Draft
from specruntime.drafts.wrappers import FullWidthDraft
from specruntime.errors import InvalidArgument
from specruntime.generation import Completion, complete
from specruntime.manifest.schema import CheckPrompt, NoneDraft
from specruntime.sampling.params import SamplingParams
from specruntime.sampling.sampler import TokenLogprobs
from specruntime.session import Session


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
    """The report as lines for people, the verdict last."""
    passed = sum(comparison.passed for comparison in report.comparisons)
    verdict = f"{passed} of {len(report.comparisons)} answers are what they must be"
    return "\n".join([*(_render(comparison) for comparison in report.comparisons), verdict])


def _render(comparison: Comparison) -> str:
    verdict = "equal to" if comparison.divergence is None else "parts from"
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
    """Compares speculative with plain decoding on every check prompt; `max_new_tokens` replaces the bundle's own.

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
        self._exact = manifest.precision == "fp32"
        self._widths = sorted(p.width for p in manifest.target.profiles if p.rows == p.width > 1)
        self._k = max(self._widths, default=1) - 1
        self._plain = bundle.new_session(speculate=False)
        self._speculative = bundle.new_session()
        if not self._exact:
            self._empty_wide = self._session_at(self._k + 1, speculate=False)
            self._drafting_wide = self._session_at(self._k + 1, speculate=True)

    def _session_at(self, width: int, *, speculate: bool) -> Session:
        """A session whose windows are `width` wide while the cache and the answer's limit have room."""

        def widen(draft: Draft) -> FullWidthDraft:
            return FullWidthDraft(draft, width - 1)

        return self._bundle.new_session(speculate=speculate, adapt=widen)

    def compare(self, prompt: CheckPrompt, law: str) -> list[Comparison]:
        """One comparison in fp32, up to two below it."""
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
        """The first difference, with the logit gap there in the run without drafts; never excused.

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

    def _acceptance(self, answer: Completion) -> float | None:
        return None if isinstance(self._bundle.manifest.draft, NoneDraft) else answer.stats.acceptance_length


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
    """The first index at which they differ, an early end included; None when equal."""
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
