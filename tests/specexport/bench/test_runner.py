"""`specexport bench`: its JSON, what its figures mean, and that unequal output cannot pass for a speed-up."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from specexport.bench.measurement import Measurement, Mode, Run, combine, measure_session
from specexport.bench.processes import MemoryUse, StartTimes, measure_memory, measure_start
from specexport.bench.prompts import BenchPrompt, load_prompts
from specexport.bench.rendering import render_report
from specexport.bench.report import BenchReport, BundleFacts
from specexport.cli import main
from specexport.errors import SourceError
from specruntime import EngineOptions, load_manifest, open_bundle
from specruntime.errors import EngineFailed, InvalidArgument
from tests.conftest import RECIPES

RUN_KEYS = {
    "prompt", "mode", "prompt_tokens", "new_tokens", "ttft_ms", "tokens_per_second", "rounds", "proposed", "accepted",
    "acceptance_length", "output_sha256",
}  # fmt: skip
SUMMARY_KEYS = {"speedup_vs_plain", "speedup_vs_pytorch", "acceptance_length", "peak_rss_mb"}
PROMPT = BenchPrompt("p", "text", "copy")


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    lines = ({"id": "a", "category": "copy", "prompt": "abc abc abc"}, {"id": "b", "prompt": "xyz"})
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\n\n")
    return path


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def measured(*arguments: str | Path) -> dict[str, Any]:
    result = run("bench", *arguments, "--repeat", "2", "--max-new-tokens", "16", "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_one_object_with_a_run_per_prompt_and_mode(tiny_bundle: Path, prompts: Path) -> None:
    found = measured(tiny_bundle, "--prompts", prompts)
    assert {"machine", "bundle", "runs", "step_ms", "summary"} <= found.keys()
    assert [(r["prompt"], r["mode"]) for r in found["runs"]] == [
        (prompt, mode) for prompt in "ab" for mode in ("plain", "speculative")
    ]
    for entry in found["runs"]:
        assert entry.keys() >= RUN_KEYS
        assert (
            entry["new_tokens"] == 1 + entry["rounds"] + entry["accepted"] or entry["mode"] == "speculative"
        )
        assert entry["tokens_per_second"] == pytest.approx(1e3 * entry["new_tokens"] / entry["total_ms"])
        assert 0 < entry["host_percent"] < 100
    assert set(found["step_ms"]) == {"1", "5", "16", "32"}
    assert set(found["draft_step_ms"]) == {"1", "2", "16", "32"}
    summary = found["summary"]
    assert summary.keys() >= SUMMARY_KEYS and summary["outputs_equal"] is True
    assert set(summary["categories"]) == {"copy", "all"}
    assert summary["speedup_vs_plain"] > 0 and summary["speedup_vs_pytorch"] is None
    assert summary["acceptance_length"] > 1
    assert found["machine"]["threads"] == 1, "what the recipe says"


@pytest.fixture
def adaptive_bundle(tiny_bundle: Path, tmp_path: Path) -> Path:
    """The tiny bundle under another name and with a dynamic length."""
    bundle = tmp_path / "tiny-adaptive.bundle"
    shutil.copytree(tiny_bundle, bundle)
    manifest = json.loads((bundle / "manifest.json").read_text())
    manifest["name"], manifest["adaptive"] = "tiny-adaptive", {"step_ms": {}, "draft_ms": {}}
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    return bundle


def test_several_bundles_are_compared_in_one_run(
    tiny_bundle: Path, adaptive_bundle: Path, prompts: Path
) -> None:
    found = measured(tiny_bundle, adaptive_bundle, "--prompts", prompts)
    modes = ("plain", "tiny-random", "tiny-adaptive")
    assert [(r["prompt"], r["mode"]) for r in found["runs"]] == [(p, mode) for p in "ab" for mode in modes]
    assert {name: facts["adaptive"] for name, facts in found["bundles"].items()} == {
        "tiny-random": False,
        "tiny-adaptive": True,
    }
    summary = found["summary"]
    assert summary["outputs_equal"] is True
    assert set(summary["modes"]) == set(modes[1:])
    assert set(summary["fastest"]) == {"a", "b"} and set(summary["fastest"].values()) <= set(modes)
    speeds = {(r["prompt"], r["mode"]): r["tokens_per_second"] for r in found["runs"]}
    ratios = [max(speeds[p, mode] for mode in modes) / speeds[p, "plain"] for p in "ab"]
    assert summary["fastest_speedup_vs_plain"] == pytest.approx((ratios[0] * ratios[1]) ** 0.5)


def test_bundles_of_one_name_are_refused(tiny_bundle: Path, prompts: Path) -> None:
    result = run("bench", tiny_bundle, tiny_bundle, "--prompts", prompts)
    assert result.exit_code == 1 and "2 bundles are called 'tiny-random'" in result.stderr


@pytest.mark.slow
def test_pytorch_runs_eager_and_compiled_with_the_same_tokens(tiny_bundle: Path, prompts: Path) -> None:
    found = measured(tiny_bundle, "--prompts", prompts, "--pytorch")
    modes = {r["mode"] for r in found["runs"]}
    assert modes == {"plain", "speculative", "pytorch", "pytorch-compiled"}
    for prompt in "ab":
        assert len({r["output_sha256"] for r in found["runs"] if r["prompt"] == prompt}) == 1
    summary = found["summary"]
    assert summary["speedup_vs_pytorch"] > 0 and summary["speedup_vs_pytorch_compiled"] > 0


def test_sampled_output_is_that_of_plain_sampling(tiny_bundle: Path, prompts: Path) -> None:
    law = ("--temperature", "0.7", "--top-p", "0.9", "--seed", "3")
    found = measured(tiny_bundle, "--prompts", prompts, *law)
    assert found["settings"]["temperature"] == 0.7
    assert found["summary"]["outputs_equal"] is True
    greedy = measured(tiny_bundle, "--prompts", prompts)
    assert [r["output_sha256"] for r in found["runs"]] != [r["output_sha256"] for r in greedy["runs"]]


def test_a_plot_is_drawn_or_refused_before_anything_is_measured(
    tiny_bundle: Path, prompts: Path, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    plot = tmp_path / "speed.png"
    assert measured(tiny_bundle, "--prompts", prompts, "--plot", plot)
    assert plot.read_bytes().startswith(b"\x89PNG")
    result = run("bench", tmp_path / "none.bundle", "--prompts", prompts, "--plot", tmp_path / "speed.bmp")
    assert result.exit_code == 1 and "expected a name that ends with .png" in result.stderr


def test_output_that_differs_from_plain_exits_1_and_names_it(
    tiny_bundle: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong_when_drafting(session: Any, *rest: Any) -> Measurement:
        found = measure_session(session, *rest)
        if found.proposed == 0:
            return found
        return replace(found, token_ids=(*found.token_ids[:-1], 0))

    monkeypatch.setattr("specexport.bench.runner.measure_session", wrong_when_drafting)
    result = run("bench", tiny_bundle, "--prompts", prompts, "--repeat", "1", "--max-new-tokens", "16")
    assert result.exit_code == 1
    last = result.stderr.splitlines()[-1]
    assert last.startswith("error: not the tokens of plain decoding: a (speculative), b (speculative)")


def measurement(seconds: float, **changes: Any) -> Measurement:
    values: dict[str, Any] = {
        "token_ids": (1, 2, 3),
        "first_seconds": 0.5,
        "rounds": 2,
        "engine_seconds": 0.9,
    }
    return Measurement(seconds=seconds, **{**values, **changes})


def test_times_are_medians_and_counters_those_of_any_repeat() -> None:
    run = combine(PROMPT, "plain", 7, [measurement(s) for s in (1.0, 9.0, 1.5)])
    assert (run.total_ms, run.ttft_ms, run.repeats, run.new_tokens) == (1500.0, 500.0, 3, 3)
    assert run.tokens_per_second == pytest.approx(2.0)
    assert run.decode_tokens_per_second == pytest.approx(2.0)
    assert run.host_percent == pytest.approx(40.0)


def test_repeats_that_differ_are_refused() -> None:
    repeats = [measurement(1.0), measurement(1.0, token_ids=(1, 2, 4))]
    with pytest.raises(EngineFailed, match="plain answered prompt p differently when asked again"):
        combine(PROMPT, "plain", 7, repeats)


def test_pytorch_has_no_host_share() -> None:
    assert combine(PROMPT, "pytorch", 7, [measurement(1.0, engine_seconds=None)]).host_percent is None


@pytest.fixture
def report() -> Callable[..., BenchReport]:
    def make(temperature: float = 0.0, **tokens: tuple[int, ...]) -> BenchReport:
        seconds: dict[Mode, float] = {
            "plain": 3.0,
            "speculative": 1.5,
            "pytorch": 6.0,
            "pytorch-compiled": 4.5,
        }
        runs: list[Run] = [
            combine(
                PROMPT, mode, 7, [measurement(s, token_ids=tokens.get(mode.replace("-", "_"), (1, 2, 3)))]
            )
            for mode, s in seconds.items()
        ]
        machine = {"processor": "any", "cores": 2, "threads": 2}
        memory = MemoryUse(100.0, 20.0, 200.0, 90.0, 5.0)
        start = StartTimes(300.0, 400.0, 150.0, 50.0, 100.0)
        facts = BundleFacts("x.bundle", "ngram", False, {"target": {"1": 2.0}}, memory, start)
        return BenchReport(machine, {"temperature": temperature}, tuple(runs), {"speculative": facts})

    return make


def test_speed_ups_are_ratios_of_measured_time(report: Callable[..., BenchReport]) -> None:
    summary = report().summary()
    assert summary["speedup_vs_plain"] == pytest.approx(2.0)
    assert summary["speedup_vs_pytorch"] == pytest.approx(4.0)
    assert summary["speedup_vs_pytorch_compiled"] == pytest.approx(3.0)
    assert summary["plain_speedup_vs_pytorch"] == pytest.approx(2.0)
    assert "4.00x" in render_report(report())
    assert summary["open_to_first_ms"] == 700, "imports are timed separately"
    assert "open to first token 700 ms (open 400, session 150, text 50, first token 100)" in render_report(
        report()
    )


def test_acceptance_is_told_by_position_over_all_rounds(report: Callable[..., BenchReport]) -> None:
    made = report()
    other = BenchPrompt("q", "text", "chat")
    runs = [
        combine(PROMPT, "speculative", 7, [measurement(1.0, rounds=4, accepted=5, accepted_at=(3, 2))]),
        combine(other, "speculative", 7, [measurement(1.0, rounds=6, accepted=1, accepted_at=(1,))]),
        combine(PROMPT, "plain", 7, [measurement(3.0)]),
        combine(other, "plain", 7, [measurement(0.6)]),
    ]
    summary = replace(made, runs=tuple(runs)).summary()
    assert summary["acceptance_by_position"] == pytest.approx([0.4, 0.2])
    assert summary["acceptance_length"] == pytest.approx(1 + sum(summary["acceptance_by_position"]))
    figures = summary["modes"]["speculative"]
    assert figures["worst_speedup_vs_plain"] == pytest.approx(0.6)
    assert figures["mean_speedup_vs_plain"] == pytest.approx(1.8**0.5)
    assert summary["fastest"] == {"p": "speculative", "q": "plain"}
    text = render_report(replace(made, runs=tuple(runs)))
    assert "speculative: draft ngram, fixed length" in text and ".40 .20" in text
    assert "None" not in text
    rows = [line.split() for line in text.splitlines() if line.startswith(("category", "all "))]
    by_total, by_mean = rows[0], rows[2]
    assert by_total[1:4] == ["total", "vs", "plain"] and by_mean[1:4] == ["mean", "vs", "plain"]
    assert rows[1][1] == f"{3.6 / 2.0:.2f}x" and rows[3][1] == f"{1.8**0.5:.2f}x"
    assert "total: all tokens of these prompts over all their time; mean: the geometric mean" in text


def test_any_greedy_mode_must_agree_but_sampled_pytorch_draws_its_own_noise(
    report: Callable[..., BenchReport],
) -> None:
    assert [r.mode for r in report(pytorch=(1, 2, 9)).differing()] == ["pytorch"]
    assert report(temperature=0.7, pytorch=(1, 2, 9)).differing() == []
    assert [r.mode for r in report(temperature=0.7, speculative=(1, 9, 9)).differing()] == ["speculative"]


def test_memory_is_measured_in_a_process_that_only_decodes(tiny_bundle: Path) -> None:
    use = measure_memory(tiny_bundle, load_manifest(tiny_bundle), threads=1)
    assert use.session_mb is not None and use.peak_rss_mb is not None
    assert 0 < use.weights_mb + use.kv_mb < use.session_mb < use.peak_rss_mb
    assert use.peak_rss_mb < 300, "the build side was imported"


def test_the_start_is_measured_in_fresh_processes(tiny_bundle: Path) -> None:
    start = measure_start(tiny_bundle, threads=1)
    steps = (start.import_ms, start.open_ms, start.session_ms, start.text_ms, start.first_ms)
    assert min(steps) > 0
    assert start.open_to_first_ms == pytest.approx(sum(steps[1:]))


def test_the_probe_of_a_start_imports_the_runtime_only_when_it_counts() -> None:
    script = "import sys; import specexport.bench.start_probe; print([m for m in sys.modules if 'specruntime' in m])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stdout.strip() == "[]"


def test_a_process_that_fails_is_reported(tiny_bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(EngineFailed, match="no bundle at"):
        measure_memory(tmp_path / "none", load_manifest(tiny_bundle))
    with pytest.raises(EngineFailed, match=r"start_probe ended with 1: .*no bundle at"):
        measure_start(tmp_path / "none")


def test_the_prompts_that_ship_are_readable() -> None:
    prompts = load_prompts(RECIPES / "prompts" / "bench.jsonl")
    assert {prompt.category for prompt in prompts} >= {"edit", "copy", "quote", "chat", "story"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no prompts"),
        ("{", "line 1 is not JSON"),
        ("hello", 'expected an object such as {"id": "a", "prompt": "Hello"}'),
        ("[1]", "line 1 is a list, expected an object"),
        ('{"id": "a"}', "line 1: `prompt` is None"),
        ('{"id": "a", "prompt": " "}', "line 1: `prompt` is ' '"),
        ('{"id": "a", "promt": "x"}', "'promt', allowed: category, id, prompt; did you mean 'prompt'?"),
        ('{"id": "a", "prompt": "x", "category": 3}', "line 1: `category` is 3"),
        ('{"id": "a", "prompt": "x"}\n{"id": "a", "prompt": "y"}', "line 2: the id 'a' is there twice"),
    ],
)
def test_a_bad_prompts_file_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(text)
    with pytest.raises(InvalidArgument, match=re.escape(message)):
        load_prompts(path)


@pytest.mark.parametrize("command", ["bench", "tune"])
def test_a_prompt_too_long_is_refused_before_anything_is_measured(
    tiny_bundle: Path, prompts: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specexport.bench.runner.measure_memory", lambda *a: pytest.fail("measured"))
    monkeypatch.setattr("specexport.tune.tuner.open_bundle", lambda *a, **k: pytest.fail("opened"))
    result = run(command, tiny_bundle, "--prompts", prompts, "--max-new-tokens", "10000")
    assert result.exit_code == 1 and "with 10000 new ones more than the capacity" in result.stderr


def test_a_reference_that_cannot_be_had_is_refused_before_anything_is_measured(
    tiny_bundle: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(root: Path) -> None:
        raise SourceError("refused first")

    monkeypatch.setattr("specexport.pytorch_reference.require_reference", refuse)
    monkeypatch.setattr("specexport.bench.runner.measure_memory", lambda *a: pytest.fail("measured"))
    result = run("bench", tiny_bundle, "--prompts", prompts, "--pytorch")
    assert result.exit_code == 1 and "refused first" in result.stderr


def test_bad_input_is_refused_in_one_line(tiny_bundle: Path, prompts: Path, tmp_path: Path) -> None:
    def refusal(*arguments: str | Path) -> str:
        result = run("bench", *arguments)
        assert result.exit_code == 1, result.output
        return result.stderr.splitlines()[-1]

    missing = refusal(tiny_bundle, "--prompts", tmp_path / "none")
    assert missing.startswith("error: the prompts file") and "No such file" in missing
    assert "no bundle at" in refusal(tmp_path / "none", "--prompts", prompts)
    assert "lower --max-new-tokens" in refusal(tiny_bundle, "--prompts", prompts, "--max-new-tokens", "250")
    assert "temperature is -1.0" in refusal(tiny_bundle, "--prompts", prompts, "--temperature", "-1")


def test_threads_are_those_of_the_option(
    tiny_bundle: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[EngineOptions] = []

    def spy(path: Path, **options: Any) -> Any:
        seen.append(options["options"])
        return open_bundle(path, **options)

    monkeypatch.setattr("specexport.bench.runner.open_bundle", spy)
    found = measured(tiny_bundle, "--prompts", prompts, "--threads", "2")
    assert seen == [EngineOptions(threads=2)] and found["machine"]["threads"] == 2
