"""What a bench found, as one JSON object: the runs, and the figures that sum them up.

A speed-up is a ratio of tokens per second over the same prompts, each all of its tokens over all of its time. With
equal outputs that is the ratio of the times. Nothing here is computed from a formula of acceptance.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from specexport.bench.measurement import Mode, Run
from specexport.bench.memory import MemoryUse

REFERENCE: Mode = "plain"


@dataclass(frozen=True, slots=True)
class BenchReport:
    """Everything one `run_bench` measured."""

    machine: dict[str, Any]
    bundle: str
    settings: dict[str, Any]
    runs: tuple[Run, ...]
    step_ms: dict[str, dict[str, float]]  # milliseconds by role of the graph and by width
    memory: MemoryUse

    @property
    def own_mode(self) -> Mode:
        """How the bundle decodes when nobody says: speculative, or plain where nothing drafts."""
        return "speculative" if any(run.mode == "speculative" for run in self.runs) else "plain"

    def differing(self) -> list[Run]:
        """Runs whose tokens are not those of plain decoding. Sampled PyTorch draws its own noise and is left out."""
        expected = {run.prompt: run.output_sha256 for run in self.runs if run.mode == REFERENCE}
        comparable = [
            run for run in self.runs if self.settings["temperature"] == 0 or run.mode == "speculative"
        ]
        return [run for run in comparable if run.output_sha256 != expected[run.prompt]]

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        drafts = {"draft_step_ms": self.step_ms["draft"]} if "draft" in self.step_ms else {}
        return {
            "machine": self.machine,
            "bundle": self.bundle,
            "settings": self.settings,
            "runs": [run.as_dict() for run in self.runs],
            "step_ms": self.step_ms["target"],
            **drafts,
            "summary": self.summary(),
        }

    def summary(self) -> dict[str, Any]:
        """Figures over all prompts and by category; None where a mode was not run."""
        by_category: dict[str, list[Run]] = {}
        for run in self.runs:
            by_category.setdefault(run.category, []).append(run)
        return {
            **self._figures(self.runs),
            **self.memory.as_dict(),
            "outputs_equal": not self.differing(),
            "differing": [{"prompt": run.prompt, "mode": run.mode} for run in self.differing()],
            "categories": {category: self._figures(runs) for category, runs in by_category.items()},
        }

    def _figures(self, runs: Sequence[Run]) -> dict[str, Any]:
        speeds = {
            mode: _speed(runs, mode) for mode in ("plain", "speculative", "pytorch", "pytorch-compiled")
        }
        own = speeds[self.own_mode]
        return {
            "speedup_vs_plain": _ratio(speeds["speculative"], speeds["plain"]),
            "speedup_vs_pytorch": _ratio(own, speeds["pytorch"]),
            "speedup_vs_pytorch_compiled": _ratio(own, speeds["pytorch-compiled"]),
            "plain_speedup_vs_pytorch": _ratio(speeds["plain"], speeds["pytorch"]),
            "acceptance_length": _acceptance_length(runs, self.own_mode),
            "host_percent": _host_percent(runs, self.own_mode),
            "plain_host_percent": _host_percent(runs, "plain"),
            "tokens_per_second": speeds,
        }


def _of(runs: Iterable[Run], mode: str) -> list[Run]:
    return [run for run in runs if run.mode == mode]


def _speed(runs: Sequence[Run], mode: str) -> float | None:
    """New tokens per second of all runs in this mode together, prefills included."""
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


def _host_percent(runs: Sequence[Run], mode: str) -> float:
    """Of all the time in this mode, the share outside engine calls."""
    chosen = _of(runs, mode)
    total = sum(run.total_ms for run in chosen)
    return sum((run.host_percent or 0.0) * run.total_ms for run in chosen) / total if total else 0.0


def render_report(report: BenchReport) -> str:
    """The report as tables for people."""
    lines = [
        f"{'prompt':18}{'mode':18}{'prompt':>7}{'new':>5}{'ttft ms':>9}{'tok/s':>8}{'tok/round':>10}{'host %':>8}"
    ]
    for run in report.runs:
        host = "" if run.host_percent is None else f"{run.host_percent:.1f}"
        lines.append(
            f"{run.prompt:18}{run.mode:18}{run.prompt_tokens:7}{run.new_tokens:5}{run.ttft_ms:9.0f}"
            f"{run.tokens_per_second:8.1f}{run.acceptance_length:10.2f}{host:>8}"
        )
    summary = report.summary()
    lines += [
        "",
        f"{'category':18}{'vs plain':>10}{'vs PyTorch':>12}{'compiled':>10}{'tok/round':>10}{'host %':>8}",
    ]
    for category, figures in {**summary["categories"], "all": summary}.items():
        lines.append(_render_figures(category, figures))
    return "\n".join([*lines, "", *_render_machine(report, summary)])


def _render_figures(category: str, figures: dict[str, Any]) -> str:
    def times(name: str) -> str:
        return "-" if figures[name] is None else f"{figures[name]:.2f}x"

    return (
        f"{category:18}{times('speedup_vs_plain'):>10}{times('speedup_vs_pytorch'):>12}"
        f"{times('speedup_vs_pytorch_compiled'):>10}{figures['acceptance_length']:10.2f}{figures['host_percent']:8.1f}"
    )


def _render_machine(report: BenchReport, summary: dict[str, Any]) -> list[str]:
    steps = ", ".join(f"{width}: {ms:.1f}" for width, ms in report.step_ms["target"].items())
    lines = [
        f"{report.machine['processor']}, {report.machine['cores']} cores, {report.machine['threads']} threads",
        f"step ms by width {steps}",
    ]
    if summary["session_mb"] is not None:
        lines.append(
            f"memory {summary['session_mb']:.0f} MB a session (weights {summary['weights_mb']:.0f} + "
            f"KV {summary['kv_mb']:.0f}), peak {summary['peak_rss_mb']:.0f} MB"
        )
    return lines
