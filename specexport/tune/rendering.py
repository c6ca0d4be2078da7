"""What `tune` found, as tables for people."""

from collections.abc import Iterator
from pathlib import Path

from specexport.tables import render_table
from specexport.tune.prediction import Prediction
from specexport.tune.trials import Trial, described
from specexport.tune.tuner import ADAPTIVE, PAYS, Finding, TuneReport

_SHOWN_RANKS = 8


def render_tuning(report: TuneReport) -> str:
    """Every bundle, then the verdict."""
    lines: list[str] = []
    if report.unfinished:
        rest = ", ".join(map(str, report.unfinished))
        lines = [f"partial: interrupted; measured in part or not at all: {rest}", ""]
    for finding in report.findings:
        lines += [*_render_finding(finding), ""]
    last = (
        verdict(report) if report.measured else "Nothing was measured before the interrupt, only predicted."
    )
    return "\n".join([*lines, last])


def verdict(report: TuneReport) -> str:
    """Return what to use, or that speculation does not pay; and what --write puts into a recipe beyond what was
    measured.
    """
    return " ".join((_measured(report), *_promised(report)))


def _promised(report: TuneReport) -> Iterator[str]:
    """Yield lines about a draft that no bundle has yet."""
    build = "--write puts it into a recipe, build that to measure it."
    if (layers := report.promised_layers) is not None:
        yield (
            f"The layers {list(layers.layers)} with k {layers.k} are predicted to reach {layers.speedup:.2f}x: {build}"
        )
    if (tree := report.promised_tree) is not None:
        speedup = tree.tokens_per_second / report.best.predictions[0].tokens_per_second
        yield f"The tree computed from its rates is predicted to reach {speedup:.2f}x: {build}"


def _measured(report: TuneReport) -> str:
    best = report.best
    if not report.pays:
        drafting = [(finding, trial) for finding in report.findings for trial in finding.trials if trial.size]
        reached = "nothing was ever proposed"
        if drafting:
            finding, trial = max(drafting, key=lambda tried: tried[1].speedup)
            reached = (
                f"the best, {finding.name} with {described(trial.size)}, reaches {trial.speedup:.2f}x plain decoding "
                f"(below {PAYS}x)"
            )
        advice = "Decode plainly (draft: {kind: none}), or try another draft."
        if report.promised_layers is not None:
            advice = "Other layers may."
        return f"Speculation does not pay on these prompts and this machine: {reached}. {advice}"
    trial = best.best
    predicted = best.predicted(trial.size)
    by_model = f", predicted {predicted.speedup:.2f}x" if predicted is not None else ""
    return (
        f"Best: {best.name} (kind {best.kind}), {described(trial.size)}: {trial.speedup:.2f}x plain decoding"
        f"{by_model}, {trial.acceptance_length:.2f} tokens a round, {trial.tokens_per_second:.1f} tok/s."
    )


def _render_finding(finding: Finding) -> list[str]:
    lines = [
        f"{finding.name}: draft {finding.kind}",
        "",
        "accepted by depth and rank, given that the parent was",
    ]
    for depth, rates in enumerate(finding.acceptance, start=1):
        lines.append(f"  depth {depth}: " + " ".join(f"{rate:.2f}" for rate in rates[:_SHOWN_RANKS]))
    lines.append("window ms by width: " + ", ".join(f"{w}: {ms:.1f}" for w, ms in finding.verify_ms.items()))
    return [*lines, "", *_render_sizes(finding), *_render_advice(finding)]


def _render_sizes(finding: Finding) -> list[str]:
    measured = {trial.size: trial for trial in finding.trials}

    def speed(found: Prediction | Trial | None) -> str:
        return "" if found is None else f"{found.tokens_per_second:.1f} tok/s {found.speedup:.2f}x"

    rows = [
        (
            str(found.size), str(found.width), f"{finding.draft_ms.get(found.size, 0.0):.2f}", f"{found.tokens:.2f}",
            speed(found), speed(measured.get(found.size)),
        )
        for found in finding.predictions
    ]  # fmt: skip
    if (trial := measured.get(ADAPTIVE)) is not None:
        rows.append(("dynamic", "", "", f"{trial.acceptance_length:.2f}", "", speed(trial)))
    return render_table(("drafted", "width", "draft ms", "tok/round", "predicted", "measured"), rows, left=())


def _render_advice(finding: Finding) -> Iterator[str]:
    if finding.tree is not None:
        yield _render_tree(finding)
    if (best := finding.layers) is not None:
        yield (
            f"best layers found: {list(best.layers)}, which agree with {best.agreement:.2f} of the answers' tokens; "
            f"k {best.k}, predicted {best.speedup:.2f}x"
        )


def _render_tree(finding: Finding) -> str:
    assert finding.tree is not None
    if finding.tree.tree is None:
        return "no tree is predicted to pay at these rates and times"
    shape = finding.tree.tree
    plain = finding.predictions[0].tokens_per_second
    return (
        f"best tree by these rates: {len(shape.parents)} nodes, depth {max(shape.depths)}, {finding.tree.tokens:.2f} "
        f"tokens a round, predicted {finding.tree.tokens_per_second:.1f} tok/s "
        f"{finding.tree.tokens_per_second / plain:.2f}x"
    )


def draw_tuning(report: TuneReport, path: Path) -> None:
    """One colour per bundle: a line for the predicted speed, a dot for the measured one. Raises `OSError`."""
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
