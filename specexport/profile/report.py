"""What a profile found, as JSON and as tables."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from specexport.bench.machine import describe_machine, threads_of
from specexport.profile.operators import WindowProfile, profile_windows
from specexport.profile.rounds import RoundProfile, profile_rounds
from specruntime.bundle import load_manifest
from specruntime.engines import EngineOptions
from specruntime.inspection.summary import graphs_of

_SHOWN = 8


@dataclass(frozen=True)
class ProfileReport:
    bundle: str
    machine: dict[str, Any]
    rounds: RoundProfile
    windows: tuple[WindowProfile, ...]

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        rounds = asdict(self.rounds) | {
            "host_ms": self.rounds.host_ms,
            "host_percent": self.rounds.host_percent,
        }
        windows = [asdict(window) | {"operator_ms": window.operator_ms} for window in self.windows]
        return {"bundle": self.bundle, "machine": self.machine, "rounds": rounds, "windows": windows}

    def phases(self) -> tuple[tuple[str, float], ...]:
        """Milliseconds of one average round by phase; their sum is the round."""
        found, count = self.rounds, max(self.rounds.rounds, 1)
        named = (("draft", found.draft_ms), ("verify", found.verify_ms), ("accept", found.accept_ms))
        rest = max(found.round_ms - sum(ms for _, ms in named), 0.0)
        return tuple((name, ms / count) for name, ms in (*named, ("commit", rest)))


def render_profile(report: ProfileReport, shown: int = _SHOWN) -> str:
    """Return the report as lines for people: a round, then every window with its `shown` dearest operators."""
    lines = [*_render_rounds(report), ""]
    for window in report.windows:
        lines += _render_window(window, shown)
    machine = report.machine
    lines.append(f"{machine['processor']}, {machine['cores']} cores, {machine['threads']} threads")
    return "\n".join(lines)


def _render_rounds(report: ProfileReport) -> list[str]:
    found, phases = report.rounds, report.phases()
    whole = sum(ms for _, ms in phases)
    parts = ", ".join(f"{name} {ms:.2f}" for name, ms in phases)
    calls = ", ".join(f"{name} {count}" for name, count in found.target_calls.items())
    lines = [
        f"a round: {whole:.2f} ms ({parts}), {found.tokens} tokens in {found.rounds} rounds and their prefills",
        f"outside engine calls: {found.host_percent:.2f} % of the time",
        f"target windows: {calls}",
        f"open {found.open_ms:.0f} ms, first token {found.first_token_ms:.0f} ms later",
    ]
    if found.draft_calls:
        lines.insert(
            3, "draft windows: " + ", ".join(f"{name} {count}" for name, count in found.draft_calls.items())
        )
    return lines


def _render_window(window: WindowProfile, shown: int) -> list[str]:
    named = f"{window.graph} {window.profile}"
    lines = [
        f"{named}: width {window.width}, {window.ms:.2f} ms, {window.operator_ms:.2f} ms in operators when profiled"
    ]
    for operator in window.operators[:shown]:
        share = 100 * operator.ms / window.operator_ms if window.operator_ms else 0.0
        lines.append(f"  {operator.ms:8.3f} ms {share:5.1f} %  {operator.count:4} x {operator.name}")
    if rest := window.operators[shown:]:
        lines.append(f"  {sum(o.ms for o in rest):8.3f} ms {'':9}{sum(o.count for o in rest):4} others")
    return [*lines, ""]


_NARROWEST_LABEL = 0.06  # of the axis


def draw_profile(report: ProfileReport, path: Path) -> None:
    """One strip for an average round and one for each window, to scale within each. Raises `OSError`."""
    from matplotlib.figure import Figure

    strips: list[tuple[str, list[tuple[str, float]]]] = [
        (f"round, {sum(ms for _, ms in report.phases()):.1f} ms", list(report.phases()))
    ]
    for window in report.windows:
        parts = [(operator.name, operator.ms) for operator in window.operators]
        title = f"{window.graph} {window.profile}, {window.ms:.1f} ms"
        strips.append((title, parts))
    figure = Figure(figsize=(14, 0.9 * len(strips) + 1.2), layout="constrained")
    axes = figure.subplots()
    colours: dict[str, Any] = {}
    for row, (_, parts) in enumerate(strips):
        _draw_strip(axes, row, parts, colours)
    axes.set_yticks(range(len(strips)), [title for title, _ in strips])
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.set_xticks([])
    axes.set_title(f"{Path(report.bundle).name}, {report.machine['processor']}")
    figure.savefig(path, dpi=150)


def _draw_strip(axes: Any, row: int, parts: list[tuple[str, float]], colours: dict[str, Any]) -> None:
    from matplotlib import colormaps

    palette = colormaps["tab20"].colors  # type: ignore[attr-defined]
    whole = sum(ms for _, ms in parts) or 1.0
    left = 0.0
    for name, ms in parts:
        kind = name.split()[0]
        colour = colours.setdefault(kind, palette[len(colours) % len(palette)])
        axes.barh(row, ms / whole, left=left, height=0.85, color=colour, edgecolor="white", linewidth=0.5)
        if ms / whole > _NARROWEST_LABEL:
            axes.text(left + ms / whole / 2, row, f"{name}\n{ms:.2f}", ha="center", va="center", fontsize=7)
        left += ms / whole


Advance = Callable[[str], None]


def profile_bundle(
    bundle: Path,
    *,
    threads: int | None = None,
    max_new_tokens: int = 64,
    advance: Advance = lambda step: None,
) -> ProfileReport:
    """Profile rounds and windows of a bundle.

    Raises `InvalidArgument` for a bundle of another engine than ONNX Runtime, and what opening raises.
    """
    manifest = load_manifest(bundle)
    threads = threads_of(manifest.target, threads)
    options = EngineOptions(threads=threads)
    windows: list[WindowProfile] = []
    for name, graph in graphs_of(manifest).items():
        advance(f"taking the {name}'s windows apart")
        windows += profile_windows(name, graph, bundle, options)
    advance("answering the check prompts")
    rounds = profile_rounds(bundle, options, max_new_tokens)
    return ProfileReport(str(bundle), describe_machine(threads), rounds, tuple(windows))
