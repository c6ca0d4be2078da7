"""A profile as a flame-style picture: a round, its phases, and below them the operators of each window."""

from pathlib import Path
from typing import Any

from specexport.profile.report import ProfileReport

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
