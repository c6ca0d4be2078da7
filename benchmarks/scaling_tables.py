"""The tables and the picture of what `scaling.py` measured."""

from pathlib import Path
from typing import Any

Report = dict[str, Any]
_TITLES = {
    "width": "Width",
    "context": "Context",
    "capacity": "Capacity",
    "batch": "Batch",
    "size": "Model size",
}
_COLUMNS = {
    "width": ("width",),
    "context": ("width", "context"),
    "capacity": ("width", "capacity"),
    "batch": ("width", "batch"),
    "size": ("model", "width"),
}
_LIMITS = ("measured", "memory", "arithmetic", "limit / measured")
_PRECISIONS = ("fp32", "int8")


def render(report: Report) -> str:
    """Markdown: one table a part, both precisions side by side; milliseconds."""
    return "\n".join(line for part in _TITLES if part in report for line in _table(part, report[part]))


def _table(part: str, found: dict[str, Any]) -> list[str]:
    columns = _COLUMNS[part]
    heads = [f"{precision} {name}" for precision in _PRECISIONS for name in _LIMITS]
    cells: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
    for row in found["rows"]:
        cells.setdefault(tuple(row[name] for name in columns), {})[row["precision"]] = row
    limits = found["limits"]
    lines = [
        f"### {_TITLES[part]}",
        "",
        f"{found['date']}: {limits['bandwidth'] / 1e9:.1f} GB/s, {limits['fp32_peak'] / 1e9:.0f} fp32 and "
        f"{limits['int8_peak'] / 1e9:.0f} int8 billion operations a second.",
        "",
        f"| {' | '.join((*columns, *heads))} |",
        "|" + "---|" * (len(columns) + len(heads)),
    ]
    for names, by_precision in cells.items():
        shown = [str(name) for name in names]
        for precision in _PRECISIONS:
            shown += _figures(by_precision.get(precision))
        lines.append(f"| {' | '.join(shown)} |")
    return [*lines, ""]


def _figures(row: dict[str, Any] | None) -> list[str]:
    if row is None:
        return ["-"] * len(_LIMITS)
    times = [f"{row[key]:.3g}" for key in ("ms", "memory_ms", "arithmetic_ms")]
    return [*times, f"{100 * row['limit_ms'] / row['ms']:.0f} %"]


def draw(report: Report, path: Path) -> None:
    """Measured times as points and lines, limits dashed; one panel a part that has been measured."""
    from matplotlib.figure import Figure

    parts = [part for part in _TITLES if part in report]
    figure = Figure(figsize=(4 * len(parts), 3.6), layout="constrained")
    for axes, part in zip(figure.subplots(1, len(parts), squeeze=False)[0], parts, strict=True):
        _panel(axes, part, report[part])
    figure.savefig(path, dpi=130)


def _panel(axes: Any, part: str, found: dict[str, Any]) -> None:
    along = _COLUMNS[part][-1] if part != "size" else "model"
    for colour, precision in zip(("tab:blue", "tab:orange"), _PRECISIONS, strict=True):
        rows = [
            r for r in found["rows"] if r["precision"] == precision and (part == "width" or r["width"] == 1)
        ]
        places = [row[along] if isinstance(row[along], str) else str(row[along]) for row in rows]
        axes.plot(places, [row["ms"] for row in rows], "o-", color=colour, label=precision)
        axes.plot(places, [row["limit_ms"] for row in rows], "--", color=colour, label=f"{precision}, limit")
    axes.set_yscale("log")
    axes.set_title(_TITLES[part] if part == "width" else f"{_TITLES[part]}, one token")
    axes.set_ylabel("milliseconds")
    axes.tick_params(axis="x", rotation=45)
    axes.legend(fontsize="small")
