"""What a check found: comparisons, where answers part, and the same as JSON and as lines. Decodes nothing."""

from dataclasses import asdict, dataclass
from typing import Any


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
