"""Speed per prompt as a bar chart. Needs the extra `plot` (matplotlib)."""

from pathlib import Path

from specexport.bench.report import BenchReport
from specruntime.errors import BackendMissing, InvalidArgument


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
