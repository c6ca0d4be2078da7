"""Predicted and measured speed by window width. Needs the extra `plot` (matplotlib)."""

from pathlib import Path

from specexport.tune.run import ADAPTIVE, TuneReport


def draw_tuning(report: TuneReport, path: Path) -> None:
    """One colour a bundle: a line for what law 4 predicts, a dot for what was measured. Raises `OSError`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.axhline(1.0, color="0.6", linewidth=1, linestyle="--", label="plain decoding")
    for index, finding in enumerate(report.findings):
        colour = f"C{index}"
        rows = [(found.size + 1, found.speedup) for found in finding.predictions]
        axes.plot(*zip(*rows, strict=True), color=colour, label=f"{finding.name}, predicted")
        fixed = [(trial.size + 1, trial.speedup) for trial in finding.trials if trial.size > 0]
        axes.plot(*zip(*fixed, strict=True), "o", color=colour, label=f"{finding.name}, measured")
        for trial in finding.trials:
            if trial.size == ADAPTIVE:
                axes.axhline(
                    trial.speedup, color=colour, linestyle=":", label=f"{finding.name}, dynamic length"
                )
    axes.set_xlabel("rows of the window: drafted tokens and the last committed one")
    axes.set_ylabel("speed against plain decoding")
    axes.set_title(f"{report.machine['processor']}, {report.machine['threads']} threads", fontsize=10)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=150)
