"""What a bench found, as one JSON object: the runs, and the figures that sum them up.

A speed-up is a ratio of tokens per second over the same prompts, each all of its tokens over all of its time. With
equal outputs that is the ratio of the times. Nothing here is computed from a formula of acceptance.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from statistics import geometric_mean
from typing import Any

from specexport.bench.measurement import Mode, Run
from specexport.bench.processes import MemoryUse, StartTimes

REFERENCE: Mode = "plain"
PYTORCH: tuple[Mode, ...] = ("pytorch", "pytorch-compiled")


@dataclass(frozen=True, slots=True)
class BundleFacts:
    """What one of the bundles is and needs."""

    path: str
    draft: str  # its kind
    adaptive: bool  # whether the number of drafts follows acceptance and times
    step_ms: dict[str, dict[str, float]]  # milliseconds by role of the graph and by width
    memory: MemoryUse
    start: StartTimes

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "path": self.path,
            "draft": self.draft,
            "adaptive": self.adaptive,
            **_step_times(self.step_ms),
            **self.memory.as_dict(),
            **self.start.as_dict(),
        }


@dataclass(frozen=True, slots=True)
class Unfinished:
    """What an interrupted bench was to measure: every prompt in every mode, so many times."""

    modes: tuple[Mode, ...]
    prompts: tuple[str, ...]
    repeat: int

    def as_dict(self, runs: Sequence[Run]) -> dict[str, Any]:
        """JSON-ready: how many answers there are of all, and which prompts and modes have all of theirs."""
        answers = {(run.prompt, run.mode): run.repeats for run in runs}

        def whole(prompts: Sequence[str], modes: Sequence[Mode]) -> bool:
            return all(answers.get((prompt, mode)) == self.repeat for prompt in prompts for mode in modes)

        return {
            "answers": sum(answers.values()),
            "of": len(self.modes) * len(self.prompts) * self.repeat,
            "complete_prompts": [prompt for prompt in self.prompts if whole([prompt], self.modes)],
            "complete_modes": [mode for mode in self.modes if whole(self.prompts, [mode])],
        }


@dataclass(frozen=True, slots=True)
class BenchReport:
    """Everything one `run_bench` measured. `bundles` by mode; the first of them also decodes plainly."""

    machine: dict[str, Any]
    settings: dict[str, Any]
    runs: tuple[Run, ...]
    bundles: dict[Mode, BundleFacts]
    unfinished: Unfinished | None = None  # of an interrupted bench

    @property
    def compared(self) -> tuple[Run, ...]:
        """The runs that figures are computed from: those of prompts that every mode answered."""
        if self.unfinished is None:
            return self.runs
        answered = {(run.prompt, run.mode) for run in self.runs}
        return tuple(
            run for run in self.runs if all((run.prompt, mode) in answered for mode in self.unfinished.modes)
        )

    @property
    def first(self) -> BundleFacts:
        return next(iter(self.bundles.values()))

    @property
    def drafting(self) -> tuple[Mode, ...]:
        """The modes that draft, in the order of the bundles."""
        found = {run.mode for run in self.runs}
        return tuple(mode for mode in self.bundles if mode in found and mode != REFERENCE)

    @property
    def own_mode(self) -> Mode:
        """The bundle's default mode; where there are several, the fastest over all prompts."""
        speeds = {mode: _speed(self.compared, mode) or 0.0 for mode in self.drafting}
        return max(speeds, key=lambda mode: speeds[mode], default=REFERENCE)

    def differing(self) -> list[Run]:
        """Return the runs whose tokens are not those of plain decoding. Sampled PyTorch draws its own noise and
        is left out.
        """
        expected = {run.prompt: run.output_sha256 for run in self.runs if run.mode == REFERENCE}
        comparable = [
            run for run in self.runs if self.settings["temperature"] == 0 or run.mode not in PYTORCH
        ]
        return [run for run in comparable if run.output_sha256 != expected[run.prompt]]

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        unfinished = {} if self.unfinished is None else {"unfinished": self.unfinished.as_dict(self.runs)}
        return {
            "partial": self.unfinished is not None,
            **unfinished,
            "machine": self.machine,
            "bundle": self.first.path,
            "draft": self.first.draft,
            "adaptive": self.first.adaptive,
            "settings": self.settings,
            "runs": [run.as_dict() for run in self.runs],
            **_step_times(self.first.step_ms),
            "bundles": {mode: facts.as_dict() for mode, facts in self.bundles.items()},
            "summary": self.summary() if self.compared else None,
        }

    def summary(self) -> dict[str, Any]:
        """Statistics over the `compared` prompts and by category; None where a mode was not run."""
        by_category: dict[str, list[Run]] = {}
        for run in self.compared:
            by_category.setdefault(run.category, []).append(run)
        return {
            **self._figures(self.compared),
            **self.first.memory.as_dict(),
            "open_to_first_ms": self.first.start.open_to_first_ms,
            "outputs_equal": not self.differing(),
            "differing": [{"prompt": run.prompt, "mode": run.mode} for run in self.differing()],
            "categories": {category: self._figures(runs) for category, runs in by_category.items()},
            "fastest": self.fastest(),
        }

    def fastest(self) -> dict[str, Mode]:
        """By prompt: the mode of most tokens per second that is not PyTorch."""
        found: dict[str, Run] = {}
        for run in self.compared:
            best = found.get(run.prompt)
            if run.mode not in PYTORCH and (best is None or run.tokens_per_second > best.tokens_per_second):
                found[run.prompt] = run
        return {prompt: run.mode for prompt, run in found.items()}

    def _figures(self, runs: Sequence[Run]) -> dict[str, Any]:
        speeds = {mode: _speed(runs, mode) for mode in (REFERENCE, *self.drafting, *PYTORCH)}
        own = self.own_mode
        fastest = self.fastest()
        return {
            "speedup_vs_plain": _ratio(speeds[own], speeds[REFERENCE]) if own != REFERENCE else None,
            "speedup_vs_pytorch": _ratio(speeds[own], speeds["pytorch"]),
            "speedup_vs_pytorch_compiled": _ratio(speeds[own], speeds["pytorch-compiled"]),
            "plain_speedup_vs_pytorch": _ratio(speeds[REFERENCE], speeds["pytorch"]),
            "acceptance_length": _acceptance_length(runs, own),
            "acceptance_by_position": _acceptance_by_position(runs, own),
            "host_percent": _host_percent(runs, own),
            "plain_host_percent": _host_percent(runs, REFERENCE),
            "tokens_per_second": speeds,
            "modes": {mode: self._mode_figures(runs, mode) for mode in self.drafting},
            "fastest_speedup_vs_plain": _mean_speedup(runs, fastest),
        }

    def _mode_figures(self, runs: Sequence[Run], mode: Mode) -> dict[str, Any]:
        return {
            "speedup_vs_plain": _ratio(_speed(runs, mode), _speed(runs, REFERENCE)),
            "mean_speedup_vs_plain": _mean_speedup(runs, {run.prompt: mode for run in runs}),
            "worst_speedup_vs_plain": min(_speedups(runs, {run.prompt: mode for run in runs})),
            "acceptance_length": _acceptance_length(runs, mode),
            "acceptance_by_position": _acceptance_by_position(runs, mode),
            "host_percent": _host_percent(runs, mode),
        }


def _step_times(step_ms: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    drafts = {"draft_step_ms": step_ms["draft"]} if "draft" in step_ms else {}
    return {"step_ms": step_ms["target"], **drafts}


def _speedups(runs: Sequence[Run], modes: dict[str, Mode]) -> list[float]:
    """Against plain decoding, of each prompt in its mode."""
    speeds = {(run.prompt, run.mode): run.tokens_per_second for run in runs}
    return [
        speeds[run.prompt, modes[run.prompt]] / run.tokens_per_second for run in runs if run.mode == REFERENCE
    ]


def _mean_speedup(runs: Sequence[Run], modes: dict[str, Mode]) -> float:
    """Return the geometric mean over prompts, which counts a prompt of few tokens as much as one of many."""
    return geometric_mean(_speedups(runs, modes))


def _of(runs: Iterable[Run], mode: str) -> list[Run]:
    return [run for run in runs if run.mode == mode]


def _speed(runs: Sequence[Run], mode: str) -> float | None:
    """Return new tokens per second of all runs in this mode together, prefills included."""
    chosen = _of(runs, mode)
    return (
        1e3 * sum(run.new_tokens for run in chosen) / sum(run.total_ms for run in chosen) if chosen else None
    )


def _ratio(speed: float | None, reference: float | None) -> float | None:
    return speed / reference if speed is not None and reference else None


def _acceptance_length(runs: Sequence[Run], mode: str) -> float:
    chosen = _of(runs, mode)
    rounds = sum(run.rounds for run in chosen)
    return 1 + sum(run.accepted for run in chosen) / rounds if rounds else 1.0


def _acceptance_by_position(runs: Sequence[Run], mode: str) -> list[float]:
    """Share of all rounds in this mode that accepted a draft at depth 0, 1, ..."""
    chosen = _of(runs, mode)
    rounds = sum(run.rounds for run in chosen)
    rows = [[share * run.rounds for share in run.acceptance_by_position] for run in chosen]
    return [sum(counts) / rounds for counts in zip_longest(*rows, fillvalue=0.0)] if rounds else []


def _host_percent(runs: Sequence[Run], mode: str) -> float:
    """Return the share of all time in this mode that is outside engine calls."""
    chosen = _of(runs, mode)
    total = sum(run.total_ms for run in chosen)
    return sum((run.host_percent or 0.0) * run.total_ms for run in chosen) / total if total else 0.0
