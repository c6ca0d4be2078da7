"""The table and the picture of a run. Every figure is measured: tokens over seconds, prefill included."""

from collections import defaultdict
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

Report = dict[str, Any]
_FIRST_PROMPTS = 6
_REFERENCE = "transformers fp32 plain"


def speeds(report: Report) -> dict[str, dict[str, list[float]]]:
    """Tokens per second by system and prompt, one per repeat; answers with an error are left out."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in report["records"]:
        if "error" not in record:
            found[record["system"]][record["prompt"]].append(len(record["tokens"]) / record["seconds"])
    return found


def geomean(by_prompt: dict[str, list[float]]) -> float:
    """The geometric mean of each prompt's median."""
    return geometric_mean([median(values) for values in by_prompt.values()])


def spread(by_prompt: dict[str, list[float]]) -> float:
    """Median over the prompts of (largest - smallest) / median of its repeats, in percent."""
    return median(100 * (max(values) - min(values)) / median(values) for values in by_prompt.values())


def first_ms(report: Report, system: str) -> float:
    """Median time to the first token over all answers."""
    own = (r for r in report["records"] if r["system"] == system and "error" not in r)
    return float(1e3 * median(record["first_seconds"] for record in own))


def agreement(report: Report, system: str) -> str:
    """How many prompts this system answers with the tokens of the same system's plain mode."""
    pairs = _pairs(report, system, system.rsplit(" ", 1)[0] + " plain")
    return f"{sum(a == b for a, b in pairs)} of {len(pairs)}" if pairs else "-"


def kept(report: Report, system: str) -> str:
    """How many tokens of the fp32 checkpoint's answers in transformers come before this system differs.

    A percentage over all prompts, and the number of answers that are the same to the end.
    """
    pairs = _pairs(report, system, _REFERENCE)
    if not pairs:
        return "-"
    common = sum(_common(found, wanted) for found, wanted in pairs)
    share = 100 * common / sum(len(wanted) for _, wanted in pairs)
    return f"{share:.0f} %, {sum(a == b for a, b in pairs)} of {len(pairs)}"


def _common(found: list[int], wanted: list[int]) -> int:
    return next(
        (i for i, (a, b) in enumerate(zip(found, wanted, strict=False)) if a != b),
        min(len(found), len(wanted)),
    )


def _pairs(report: Report, system: str, reference: str) -> list[tuple[list[int], list[int]]]:
    """By prompt: the system's answer and the reference's."""
    answers = {(r["system"], r["prompt"]): r["tokens"] for r in report["records"] if "error" not in r}
    return [
        (tokens, answers[reference, prompt])
        for (name, prompt), tokens in answers.items()
        if name == system and (reference, prompt) in answers
    ]


def render(report: Report) -> str:
    """Markdown."""
    found = speeds(report)
    shown = list(report["categories"])[:_FIRST_PROMPTS]
    settings, machine = report["settings"], report["machine"]
    lines = [
        f"{report['date']}, {machine['processor']}, {machine['threads']} threads of {machine['cores']} cores, "
        f"{settings['max_new_tokens']} new tokens, greedy, medians of {settings['repeat']}; tokens per second with the "
        f"prefill included, geometric mean over {len(report['categories'])} prompts.",
        "",
        f"| system | ttft ms | {' | '.join(shown)} | geomean | spread % | same answers as its plain mode "
        "| tokens before it parts from the fp32 checkpoint, same answers |",
        f"|---|{'---|' * (len(shown) + 5)}",
    ]
    for system, by_prompt in found.items():
        cells = [f"{median(by_prompt[p]):.1f}" if p in by_prompt else "-" for p in shown]
        lines.append(
            f"| {system} | {first_ms(report, system):.0f} | {' | '.join(cells)} | **{geomean(by_prompt):.1f}** | "
            f"{spread(by_prompt):.0f} | {agreement(report, system)} | {kept(report, system)} |"
        )
    versions = {name: v for each in report["versions"].values() for name, v in each.items()}
    lines += ["", "Versions: " + ", ".join(f"{name} {version}" for name, version in versions.items()) + "."]
    lines += [f"Not measured: {system}: {reason}" for system, reason in report["missing"].items()]
    return "\n".join([*lines, ""])


def draw(report: Report, path: Path) -> None:
    """One bar a system: the geometric mean."""
    from matplotlib.figure import Figure

    found = speeds(report)
    names = sorted(found, key=lambda name: geomean(found[name]))
    figure = Figure(figsize=(8, 0.35 * len(names) + 1.2), layout="constrained")
    axes = figure.subplots()
    colours = ["tab:blue" if name.startswith("specruntime") else "tab:gray" for name in names]
    bars = axes.barh(names, [geomean(found[name]) for name in names], color=colours)
    axes.bar_label(bars, fmt="%.0f", padding=3)
    axes.set_xlabel("tokens per second, prefill included, geometric mean")
    axes.set_title(f"SmolLM2-135M, {report['machine']['processor']}, {report['machine']['threads']} threads")
    figure.savefig(path, dpi=150)
