"""The figures the project promises, each measured in turns with what it is compared to.

Run them on an idle machine: they compare times.
"""

from pathlib import Path
from typing import Any

import pytest

from specexport.bench.processes import measure_memory
from specexport.bench.report import BenchReport
from specexport.bench.runner import BenchPlan, run_bench
from specexport.build import build
from specexport.bundle.record import measure_step_times
from specexport.recipe.schema import Recipe
from specruntime import SamplingParams, load_manifest
from tests.latency.conftest import COPIES, PROSE, chosen

NEW_TOKENS = 128


@pytest.fixture(scope="module")
def greedy(real_bundle: Path) -> BenchReport:
    return run_bench(BenchPlan((real_bundle,), chosen(*COPIES, *PROSE), NEW_TOKENS, repeat=3, pytorch=True))


@pytest.fixture(scope="module")
def sampled(real_bundle: Path) -> BenchReport:
    law = SamplingParams(temperature=0.7, top_p=0.9, seed=1)
    return run_bench(BenchPlan((real_bundle,), chosen(*COPIES, *PROSE), NEW_TOKENS, repeat=3, params=law))


def figures(report: BenchReport, categories: tuple[str, ...]) -> list[dict[str, Any]]:
    """Of each category; the five prompts are named after theirs."""
    by_category = report.summary()["categories"]
    return [by_category[category] for category in categories]


def test_every_mode_gives_the_same_tokens(benchmark: Any, greedy: BenchReport, sampled: BenchReport) -> None:
    assert benchmark.pedantic(greedy.differing) == []
    assert sampled.differing() == []


def test_plain_decoding_beats_pytorch(benchmark: Any, greedy: BenchReport) -> None:
    summary = benchmark.pedantic(greedy.summary)
    benchmark.extra_info["speedup"] = summary["plain_speedup_vs_pytorch"]
    assert summary["plain_speedup_vs_pytorch"] >= 1.5


def test_copies_pay(benchmark: Any, greedy: BenchReport) -> None:
    for found in benchmark.pedantic(figures, args=(greedy, COPIES)):
        assert found["speedup_vs_pytorch"] >= 4
        assert found["speedup_vs_plain"] >= 2


def test_prose_costs_nothing(benchmark: Any, greedy: BenchReport) -> None:
    for found in benchmark.pedantic(figures, args=(greedy, PROSE)):
        assert found["speedup_vs_plain"] >= 0.95


@pytest.mark.parametrize(("law", "percent"), [("greedy", 3), ("sampled", 10)])
def test_the_loops_own_time_is_small(
    benchmark: Any, request: pytest.FixtureRequest, law: str, percent: float
) -> None:
    report: BenchReport = request.getfixturevalue(law)
    summary = benchmark.pedantic(report.summary)
    assert summary["host_percent"] < percent
    assert summary["plain_host_percent"] < percent


def test_a_step_costs_what_its_context_costs_not_its_capacity(
    benchmark: Any, recipe: Recipe, real_bundle: Path, tmp_path: Path
) -> None:
    large = build(recipe.model_copy(update={"capacity": 4096}), tmp_path / "large.bundle")

    def step_ms(bundle: Path) -> float:
        return measure_step_times(load_manifest(bundle, verify=False).target, bundle, repeats=40)["1"]

    small_ms = min(step_ms(real_bundle) for _ in range(3))
    large_ms = min(
        benchmark.pedantic(step_ms, args=(large,)) if turn == 0 else step_ms(large) for turn in range(3)
    )
    benchmark.extra_info["ratio"] = large_ms / small_ms
    assert large_ms == pytest.approx(small_ms, rel=0.1)


def test_a_session_holds_weights_and_cache_and_little_else(benchmark: Any, real_bundle: Path) -> None:
    use = benchmark.pedantic(measure_memory, args=(real_bundle, load_manifest(real_bundle, verify=False)))
    benchmark.extra_info.update(use.as_dict())
    assert use.session_mb <= 1.15 * (use.weights_mb + use.kv_mb)
