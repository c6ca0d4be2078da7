"""A bench report as tables for people."""

from pathlib import Path
from typing import Any

from specexport.bench.report import BenchReport
from specruntime.errors import BackendMissing, InvalidArgument

_LEGEND = (
    "total: all tokens of these prompts over all their time; mean: the geometric mean of the prompts' own "
    "ratios, each counted alike; worst: the smallest of these"
)


def render_report(report: BenchReport) -> str:
    """Every run, the figures by category, of several bundles each by itself, then the machine."""
    wide = max(18, *(len(run.mode) + 2 for run in report.runs))
    lines = [
        *_render_unfinished(report),
        f"{'prompt':18}{'mode':{wide}}{'prompt':>7}{'new':>5}{'ttft ms':>9}{'tok/s':>8}{'tok/round':>10}{'host %':>8}",
    ]
    for run in report.runs:
        host = "" if run.host_percent is None else f"{run.host_percent:.1f}"
        lines.append(
            f"{run.prompt:18}{run.mode:{wide}}{run.prompt_tokens:7}{run.new_tokens:5}{run.ttft_ms:9.0f}"
            f"{run.tokens_per_second:8.1f}{run.acceptance_length:10.2f}{host:>8}"
        )
    lines += ["", *_render_summary(report)]
    return "\n".join([*lines, "", *_render_machine(report)])


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
    """The figures of all prompts and by category, then of each mode that drafts."""
    if not report.compared:
        return ["no prompt was answered in every mode: nothing can be compared"]
    summary = report.summary()
    lines = [
        f"{'category':18}{'total vs plain':>16}{'vs PyTorch':>12}{'compiled':>10}{'tok/round':>10}{'host %':>8}"
    ]
    for category, figures in {**summary["categories"], "all": summary}.items():
        lines.append(_render_figures(category, figures))
    for mode in report.drafting:
        lines += ["", *_render_mode(report, mode, summary)]
    if len(report.drafting) > 1:
        lines += ["", *_render_fastest(report, summary)]
    return [*lines, "", _LEGEND]


def _render_figures(category: str, figures: dict[str, Any]) -> str:
    def times(name: str) -> str:
        return "-" if figures[name] is None else f"{figures[name]:.2f}x"

    return (
        f"{category:18}{times('speedup_vs_plain'):>16}{times('speedup_vs_pytorch'):>12}"
        f"{times('speedup_vs_pytorch_compiled'):>10}{figures['acceptance_length']:10.2f}{figures['host_percent']:8.1f}"
    )


def _render_mode(report: BenchReport, mode: str, summary: dict[str, Any]) -> list[str]:
    """Acceptance by position, and the speed by category against plain decoding."""
    facts = report.bundles[mode]
    length = "dynamic length" if facts.adaptive else "fixed length"
    lines = [
        f"{mode}: draft {facts.draft}, {length}",
        f"{'category':18}{'mean vs plain':>16}{'worst':>8}{'tok/round':>10}  accepted at depth 1, 2, ...",
    ]
    for category, figures in {**summary["categories"], "all": summary}.items():
        found = figures["modes"][mode]
        shares = " ".join(f"{share:.2f}".lstrip("0") for share in found["acceptance_by_position"])
        lines.append(
            f"{category:18}{found['mean_speedup_vs_plain']:15.2f}x{found['worst_speedup_vs_plain']:7.2f}x"
            f"{found['acceptance_length']:10.2f}  {shares}"
        )
    return lines


def _render_fastest(report: BenchReport, summary: dict[str, Any]) -> list[str]:
    """The best bundle for each prompt; geometric means of the speed-ups."""
    lines = [f"{'fastest for':18}{'vs plain':>16}"]
    speeds = {(run.prompt, run.mode): run.tokens_per_second for run in report.runs}
    for prompt, mode in summary["fastest"].items():
        lines.append(f"{prompt:18}{speeds[prompt, mode] / speeds[prompt, 'plain']:15.2f}x  {mode}")
    return [*lines, f"{'all, mean':18}{summary['fastest_speedup_vs_plain']:15.2f}x  the fastest for each"]


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
            f"{option} is {path}, but {path.absolute().parent} is no directory: create it first"
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
