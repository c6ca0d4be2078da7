"""The tables of README and docs are what the stored benchmark results say."""

import json
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

from benchmarks.tables import kept, speeds
from tests.conftest import REPOSITORY

FIGURES = REPOSITORY / "docs" / "figures"
PROMPTS: Path = REPOSITORY / "recipes" / "prompts" / "bench.jsonl"
COPYING, PROSE = ("edit", "copy", "quote"), ("chat", "story")
MODES = {
    "pytorch": "PyTorch `generate`, eager",
    "pytorch-compiled": "PyTorch, `torch.compile`, static cache",
    "plain": "specruntime, plain",
    "speculative": "specruntime, n-gram",
}


def table(greedy: dict[str, Any], sampled: dict[str, Any]) -> list[str]:
    """Rows of the README's table: tokens per second over all prompts of a group, prefill included."""
    lines = []
    for mode, name in MODES.items():
        cells = [f"{speed(greedy, mode, group):.1f}" for group in (COPYING, PROSE, None)]
        drawn = f"{speed(sampled, mode, None):.1f}" if mode in ("plain", "speculative") else "–"
        length = acceptance(greedy) if mode == "speculative" else "1"
        lines.append(f"| {name} | {' | '.join(cells)} | {drawn} | {length} |")
    return lines


def drafts_table(result: dict[str, Any]) -> list[str]:
    """Rows of the benchmark page's table of drafts: speed as a ratio to plain decoding in the same run."""
    plain = [speed(result, "plain", group) for group in (COPYING, PROSE, None)]
    lines = [f"| plain, tokens per second | {' | '.join(f'{value:.1f}' for value in plain)} | 1 | 1 | |"]
    for mode, facts in result["summary"]["modes"].items():
        ratios = [
            f"{speed(result, mode, group) / base:.2f}x"
            for group, base in zip((COPYING, PROSE, None), plain, strict=True)
        ]
        lengths = [f"{tokens_a_round(result, mode, group):.2f}" for group in (COPYING, PROSE)]
        lines.append(
            f"| {mode} | {' | '.join((*ratios, *lengths))} | {facts['worst_speedup_vs_plain']:.2f}x |"
        )
    return lines


def tokens_a_round(result: dict[str, Any], mode: str, categories: tuple[str, ...]) -> float:
    runs = [run for run in result["runs"] if run["mode"] == mode and run["category"] in categories]
    return float(1 + sum(run["accepted"] for run in runs) / sum(run["rounds"] for run in runs))


def speed(result: dict[str, Any], mode: str, categories: tuple[str, ...] | None) -> float:
    """All new tokens over all time of one mode's runs."""
    prompts = {p["id"]: p["category"] for p in map(json.loads, PROMPTS.read_text().splitlines())}
    runs = [
        run
        for run in result["runs"]
        if run["mode"] == mode and (categories is None or prompts[run["prompt"]] in categories)
    ]
    tokens = sum(run["new_tokens"] for run in runs)
    seconds = sum(run["new_tokens"] / run["tokens_per_second"] for run in runs)
    return float(tokens / seconds)


def acceptance(result: dict[str, Any]) -> str:
    return f"{result['summary']['acceptance_length']:.2f}"


def test_the_table_holds_the_stored_results() -> None:
    greedy = json.loads((FIGURES / "smollm2-135m-fp32-greedy.json").read_text())
    sampled = json.loads((FIGURES / "smollm2-135m-fp32-sampled.json").read_text())
    readme = (REPOSITORY / "README.md").read_text()
    for line in table(greedy, sampled):
        assert line in readme, f"the page lacks: {line}"


def test_the_table_of_drafts_holds_the_stored_results() -> None:
    result = json.loads((FIGURES / "smollm2-135m-drafts.json").read_text())
    assert result["summary"]["outputs_equal"], "every mode gave plain decoding's tokens"
    readme = (REPOSITORY / "docs" / "benchmark.md").read_text()
    assert (
        f"the fastest bundle of each prompt gives {result['summary']['fastest_speedup_vs_plain']:.2f}x"
        in readme
    )
    for line in drafts_table(result):
        assert line in readme, f"the page lacks: {line}"


def test_the_table_of_batches_holds_the_stored_results() -> None:
    result = json.loads((FIGURES / "smollm2-135m-batches.json").read_text())
    text = (REPOSITORY / "docs" / "batches.md").read_text()
    for found in result["batches"]:
        assert found["outputs_equal"]
        speeds = [f"{found[way]:.1f}" for way in ("plain", "speculative", "auto")]
        speeds.insert(1, f"{found['plain_vs_one_row']:.2f}")
        line = f"| {found['rows']} | {' | '.join(speeds)} | {found['auto_of_best']:.2f} |"
        assert line in text, f"docs/batches.md lacks: {line}"


def test_the_adaptive_bundle_alone_is_what_the_page_says() -> None:
    result = json.loads((FIGURES / "smollm2-135m-adaptive.json").read_text())
    assert result["summary"]["outputs_equal"]
    prose, overall = (
        speed(result, "speculative", group) / speed(result, "plain", group) for group in (PROSE, None)
    )
    worst = result["summary"]["modes"]["speculative"]["worst_speedup_vs_plain"]
    readme = (REPOSITORY / "docs" / "benchmark.md").read_text()
    assert (
        f"{prose:.2f}x on chat and story, {overall:.2f}x overall, {worst:.2f}x on the worst prompt" in readme
    )


def test_the_table_of_other_systems_holds_the_stored_results() -> None:
    report = json.loads((FIGURES / "peers.json").read_text())
    text = (REPOSITORY / "docs" / "benchmark.md").read_text()
    found = {
        system: {prompt: median(values) for prompt, values in by_prompt.items()}
        for system, by_prompt in speeds(report).items()
    }

    def mean(system: str, mode: str, categories: tuple[str, ...] = ()) -> float:
        values = found[f"{system} {mode}"]
        chosen = [v for p, v in values.items() if not categories or report["categories"][p] in categories]
        return geometric_mean(chosen)

    systems = [name.removesuffix(" plain") for name in found if name.endswith(" plain")]
    assert len(systems) >= 9
    for system in systems:
        plain, lookup = mean(system, "plain"), mean(system, "lookup")
        copying = mean(system, "lookup", (*COPYING, "summary"))
        share = kept(report, f"{system} plain").split(",")[0]
        name = system.replace("GenAI fp16", "GenAI, fp16")
        cells = f"{plain:.1f} | {mean(system, 'plain', PROSE):.1f} | {copying:.1f} | {max(plain, lookup):.1f} | {share}"
        assert f"| {name} | {cells} |" in text, f"docs/benchmark.md lacks: | {name} | {cells} |"


def test_the_stored_results_reach_what_the_readme_says() -> None:
    """Each prompt by itself: copying at least 2x plain and 3x PyTorch, no prompt below 0.95x plain."""
    greedy = json.loads((FIGURES / "smollm2-135m-fp32-greedy.json").read_text())
    prompts = {p["id"]: p["category"] for p in map(json.loads, PROMPTS.read_text().splitlines())}
    speeds = {(run["prompt"], run["mode"]): run["tokens_per_second"] for run in greedy["runs"]}
    hashes = {(run["prompt"], run["output_sha256"]) for run in greedy["runs"]}
    assert len(hashes) == len(prompts), "all modes gave the same tokens"
    for prompt, category in prompts.items():
        plain, drafted = speeds[prompt, "plain"], speeds[prompt, "speculative"]
        assert plain / speeds[prompt, "pytorch"] >= 1.2
        assert drafted / plain >= (2.0 if category in COPYING else 0.95)
        if category in COPYING:
            assert drafted / speeds[prompt, "pytorch"] >= 3.0
