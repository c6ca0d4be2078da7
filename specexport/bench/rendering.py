"""A bench report as tables for people."""

from pathlib import Path
from typing import Any

from specexport.bench.report import BenchReport
from specexport.tables import render_table
from specruntime.errors import BackendMissing, InvalidArgument

_LEGEND = (
    "total: all tokens of these prompts over all their time; mean: the geometric mean of the prompts' own "
    "ratios, each counted alike; worst: the smallest of these"
)


def render_report(report: BenchReport) -> str:
    """Every run, the figures by category, of several bundles each by itself, then the machine."""
    lines = [*_render_unfinished(report), *_render_runs(report)]
    lines += ["", *_render_summary(report)]
    return "\n".join([*lines, "", *_render_machine(report)])


def _render_runs(report: BenchReport) -> list[str]:
    header = ("prompt", "mode", "prompt", "new", "ttft ms", "tok/s", "tok/round", "host %")
    rows = [
        (
            run.prompt, run.mode, str(run.prompt_tokens), str(run.new_tokens), f"{run.ttft_ms:.0f}",
            f"{run.tokens_per_second:.1f}", f"{run.acceptance_length:.2f}",
            "" if run.host_percent is None else f"{run.host_percent:.1f}",
        )
        for run in report.runs
    ]  # fmt: skip
    return render_table(header, rows, left=(0, 1))


def _render_unfinished(report: BenchReport) -> list[str]:
    if report.unfinished is None:
        return []
    found = report.unfinished.as_dict(report.runs)
    prompts, modes = (", ".join(found[key]) or "none" for key in ("complete_prompts", "complete_modes"))
    compared = ", ".join(dict.fromkeys(run.prompt for run in report.compared)) or "none"
    return [
        f"partial: interrupted after {found['answers']} of {found['of']} answers",
        f"complete: prompts {prompts}; modes {modes}",
        f"compared, since every mode answered them: prompts {compared}",
        "",
    ]


def _render_summary(report: BenchReport) -> list[str]:
    """Return the figures of all prompts and by category, then of each mode that drafts."""
    if not report.compared:
        return ["no prompt was answered in every mode: nothing can be compared"]
    summary = report.summary()
    header = ("category", "total vs plain", "vs PyTorch", "compiled", "tok/round", "host %")
    rows = [_figures(name, found) for name, found in {**summary["categories"], "all": summary}.items()]
    lines = render_table(header, rows)
    for mode in report.drafting:
        lines += ["", *_render_mode(report, mode, summary)]
    if len(report.drafting) > 1:
        lines += ["", *_render_fastest(report, summary)]
    return [*lines, "", _LEGEND]


def _figures(category: str, found: dict[str, Any]) -> tuple[str, ...]:
    def times(name: str) -> str:
        return "-" if found[name] is None else f"{found[name]:.2f}x"

    ratios = map(times, ("speedup_vs_plain", "speedup_vs_pytorch", "speedup_vs_pytorch_compiled"))
    return category, *ratios, f"{found['acceptance_length']:.2f}", f"{found['host_percent']:.1f}"


def _render_mode(report: BenchReport, mode: str, summary: dict[str, Any]) -> list[str]:
    """Return acceptance by position, and the speed by category against plain decoding."""
    facts = report.bundles[mode]
    length = "dynamic length" if facts.adaptive else "fixed length"
    rows = []
    for category, figures in {**summary["categories"], "all": summary}.items():
        found = figures["modes"][mode]
        ratios = (f"{found[f'{name}_speedup_vs_plain']:.2f}x" for name in ("mean", "worst"))
        shares = " ".join(f"{share:.2f}".lstrip("0") for share in found["acceptance_by_position"])
        rows.append((category, *ratios, f"{found['acceptance_length']:.2f}", shares))
    header = ("category", "mean vs plain", "worst", "tok/round", "accepted at depth 1, 2, ...")
    return [f"{mode}: draft {facts.draft}, {length}", *render_table(header, rows, left=(0, 4))]


def _render_fastest(report: BenchReport, summary: dict[str, Any]) -> list[str]:
    """Return the best bundle for each prompt; geometric means of the speed-ups."""
    speeds = {(run.prompt, run.mode): run.tokens_per_second for run in report.runs}
    rows = [
        (prompt, f"{speeds[prompt, mode] / speeds[prompt, 'plain']:.2f}x", mode)
        for prompt, mode in summary["fastest"].items()
    ]
    rows.append(("all, mean", f"{summary['fastest_speedup_vs_plain']:.2f}x", "the fastest for each"))
    return render_table(("fastest for", "vs plain", "mode"), rows, left=(0, 2))


def _render_machine(report: BenchReport) -> list[str]:
    lines = [
        f"{report.machine['processor']}, {report.machine['cores']} cores, {report.machine['threads']} threads"
    ]
    several = len(report.bundles) > 1
    for mode, facts in report.bundles.items():
        label = f"{mode}: " if several else ""
        steps = ", ".join(f"{width}: {ms:.1f}" for width, ms in facts.step_ms["target"].items())
        lines.append(f"{label}step ms by width {steps}")
        memory = facts.memory
        if memory.session_mb is not None and memory.peak_rss_mb is not None:
            lines.append(
                f"{label}memory {memory.session_mb:.0f} MB a session (weights {memory.weights_mb:.0f} + "
                f"KV {memory.kv_mb:.0f}), peak {memory.peak_rss_mb:.0f} MB"
            )
        start = facts.start
        lines.append(
            f"{label}open to first token {start.open_to_first_ms:.0f} ms (open {start.open_ms:.0f}, session "
            f"{start.session_ms:.0f}, text {start.text_ms:.0f}, first token {start.first_ms:.0f}), after "
            f"{start.import_ms:.0f} ms of imports"
        )
    return lines


def require_plot(path: Path, option: str = "--plot") -> None:
    """Before minutes are spent measuring: raises `BackendMissing` or `InvalidArgument`, naming the `option`."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise BackendMissing(f"{option} needs matplotlib: pip install 'specexport[plot]'") from error
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise InvalidArgument(f"{option} is {path}, expected a name that ends with .png, .svg or .pdf")
    if not path.absolute().parent.is_dir():
        raise InvalidArgument(
            f"{option} is {path}, but {path.absolute().parent} is not a directory: create it first"
        )


def draw_speeds(report: BenchReport, path: Path) -> None:
    """One group of bars per prompt, one bar per mode. Raises `OSError` when the file cannot be written."""
    from matplotlib.figure import Figure

    modes = list(dict.fromkeys(run.mode for run in report.runs))
    prompts = list(dict.fromkeys(run.prompt for run in report.runs))
    width = 0.8 / len(modes)
    figure = Figure(figsize=(max(6.0, 0.9 * len(prompts)), 4.5), layout="constrained")
    axes = figure.subplots()
    for index, mode in enumerate(modes):
        places = [number + (index - (len(modes) - 1) / 2) * width for number in range(len(prompts))]
        axes.bar(
            places, [run.tokens_per_second for run in report.runs if run.mode == mode], width, label=mode
        )
    axes.set_xticks(range(len(prompts)), prompts, rotation=45, ha="right")
    axes.set_ylabel("tokens per second, prefill included")
    names = ", ".join(Path(facts.path).name for facts in report.bundles.values())
    axes.set_title(f"{names}, {report.machine['processor']}, {report.machine['threads']} threads")
    axes.legend()
    figure.savefig(path, dpi=150)
