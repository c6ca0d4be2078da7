"""Ctrl-C ends the command in one line, also while it is still importing; what was measured by then is printed."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from specexport.bench import batches
from specexport.bench import runner as benching
from specexport.bench.measurement import measure_session
from specexport.bench.processes import MemoryUse, StartTimes
from specexport.bench.report import BundleFacts
from specexport.cli import main
from specexport.tune import probing, trials
from specexport.tune import tuner as tuning
from tests.conftest import RECIPES

IMPORT = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
from specexport.cli import main
sys.stderr.write(str(signal.getsignal(signal.SIGINT) is signal.default_int_handler))
"""


def run(module: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", IMPORT, module], capture_output=True, text=True, check=False, timeout=120
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("module", ["click", "pydantic", "specruntime.manifest.schema"])
def test_an_interrupted_import_is_one_line_and_130(module: str) -> None:
    assert run(module) == (130, "interrupted\n")


def test_the_handler_is_pythons_own_again_afterwards() -> None:
    assert run("no.such.module") == (0, "True")


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    lines = (
        {"id": name, "prompt": text, "category": name} for name, text in (("a", "abc abc"), ("b", "xyz xyz"))
    )
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def command(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def interrupted_after(count: int, call: Callable[..., Any]) -> Callable[..., Any]:
    """`call`, and Ctrl-C in the middle of the call after `count` of them."""
    done = 0

    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal done
        if done == count:
            raise KeyboardInterrupt
        done += 1
        return call(*arguments, **options)

    return counted


@pytest.fixture
def bench(tiny_bundle: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """`bench`, interrupted after so many answers; two warm every mode up, memory and start are not measured."""
    facts = BundleFacts(
        str(tiny_bundle), "model", False, {"target": {"1": 1.0}}, MemoryUse(None, None, None, 1.0, 1.0),
        StartTimes(1.0, 1.0, 1.0, 1.0, 1.0),
    )  # fmt: skip
    monkeypatch.setattr(benching, "_facts", lambda *_: facts)

    def bench(answers: int, *options: str | Path) -> Result:
        answer = interrupted_after(2 + answers, measure_session)
        monkeypatch.setattr(benching, "measure_session", answer)
        limits = ("--max-new-tokens", "8", "--repeat", "2")
        return command("bench", tiny_bundle, "--prompts", prompts, *limits, *options)

    return bench


def test_an_interrupted_bench_reports_what_is_whole(bench: Callable[..., Result], tmp_path: Path) -> None:
    """Of two prompts in two modes, two times each, in turns: all first turns, the second one of `a`."""
    result = bench(6, "--json", "--plot", tmp_path / "speed.png")
    assert result.exit_code == 130
    assert result.stderr.splitlines()[-2:] == [
        f"{tmp_path / 'speed.png'} was not written: the figures are partial", "interrupted",
    ]  # fmt: skip
    assert not (tmp_path / "speed.png").exists()
    found = json.loads(result.stdout)
    assert found["partial"] is True
    assert found["unfinished"] == {"answers": 6, "of": 8, "complete_prompts": ["a"], "complete_modes": []}
    assert [(run["prompt"], run["mode"], run["repeats"]) for run in found["runs"]] == [
        ("a", "plain", 2), ("a", "speculative", 2), ("b", "plain", 1), ("b", "speculative", 1),
    ]  # fmt: skip
    assert set(found["summary"]["categories"]) == {"a", "b"}


def test_a_prompt_that_lacks_a_mode_is_in_no_figure(bench: Callable[..., Result]) -> None:
    result = bench(3)
    assert result.exit_code == 130
    lines = result.stdout.splitlines()
    assert lines[:3] == [
        "partial: interrupted after 3 of 8 answers",
        "complete: prompts none; modes none",
        "compared, since every mode answered them: prompts a",
    ]
    rows = [line.split()[0] for line in lines if "x" in line and line.startswith(("a ", "b ", "all "))]
    assert rows == ["a", "all"] * 2
    assert sum(line.startswith("b ") for line in lines) == 1, "its run in plain decoding is shown"
    assert "None" not in result.stdout


def test_figures_need_a_prompt_that_every_mode_answered(bench: Callable[..., Result]) -> None:
    result = bench(1, "--json")
    found = json.loads(result.stdout)
    assert (result.exit_code, found["partial"], found["summary"]) == (130, True, None)
    assert len(found["runs"]) == 1


def test_before_the_first_answer_there_is_nothing_to_print(bench: Callable[..., Result]) -> None:
    result = bench(0)
    assert (result.exit_code, result.stdout) == (130, "")
    assert result.stderr.splitlines()[-1] == "interrupted"


def test_a_whole_bench_is_not_partial(bench: Callable[..., Result]) -> None:
    result = bench(8, "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert found["partial"] is False and "unfinished" not in found


def test_an_interrupted_bench_of_batches_reports_whole_turns(
    tiny_bundle: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn is all three ways; the second one is cut short."""
    monkeypatch.setattr(batches, "_decode", interrupted_after(4, batches._decode))
    arguments = ("--prompts", prompts, "--max-new-tokens", "8", "--repeat", "2", "--batch", "1")
    result = command("bench", tiny_bundle, *arguments, "--json")
    found = json.loads(result.stdout)
    assert (result.exit_code, found["partial"]) == (130, True)
    assert [(speed["rows"], speed["repeats"]) for speed in found["batches"]] == [(1, 1)]
    monkeypatch.undo()
    monkeypatch.setattr(batches, "_decode", interrupted_after(4, batches._decode))
    text = command("bench", tiny_bundle, *arguments).stdout
    assert text.startswith("partial: interrupted; whole turns: 1 of 1 rows\n")


@pytest.mark.parametrize(
    ("answers", "measured"), [(0, []), (3, ["a"])], ids=["while the first prompt is tried", "in the second"]
)
def test_an_interrupted_tune_reports_predictions_and_whole_trials(
    tiny_bundle: Path,
    prompts: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    answers: int,
    measured: list[str],
) -> None:
    """Each prompt is answered plainly and in one size. Nothing is written into the recipe."""
    recipe = tmp_path / "tiny.yaml"
    recipe.write_text((RECIPES / "tiny-random.yaml").read_text())
    limits = ("--max-new-tokens", "64", "--tried", "1", "--write", recipe)
    for options in (("--json",), ()):
        with monkeypatch.context() as patch:
            patch.setattr(trials, "_answer", interrupted_after(answers, trials._answer))
            result = command("tune", tiny_bundle, "--prompts", prompts, *limits, *options)
        assert result.exit_code == 130
        assert f"{recipe} was not written: the figures are partial" in result.stderr
        if not options:
            assert result.stdout.startswith(
                f"partial: interrupted; measured in part or not at all: {tiny_bundle}"
            )
            assert ("Nothing was measured before the interrupt" in result.stdout) is (not measured)
            assert "None" not in result.stdout
            continue
        found = json.loads(result.stdout)
        assert (found["partial"], found["unfinished"]) == (True, [str(tiny_bundle)])
        (bundle,) = found["bundles"]
        assert [one["size"] for one in bundle["predicted"]] == [0, 1, 2, 3, 4]
        assert len(bundle["measured"]) == (2 if measured else 0)
        assert (found["best"] is None) is (found["pays"] is None) is (not measured)
    assert recipe.read_text() == (RECIPES / "tiny-random.yaml").read_text()


def test_a_tune_keeps_the_bundles_before_the_one_that_was_interrupted(
    tiny_bundle: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "probe", interrupted_after(1, probing.probe))
    limits = ("--max-new-tokens", "64", "--tried", "1")
    result = command("tune", tiny_bundle, tiny_bundle, "--prompts", prompts, *limits, "--json")
    found = json.loads(result.stdout)
    assert (result.exit_code, len(found["bundles"]), found["unfinished"]) == (130, 1, [str(tiny_bundle)])
    assert len(found["bundles"][0]["measured"]) == 2 and found["best"] is not None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_interrupt_a_bench(tiny_bundle: Path, prompts: Path, number: signal.Signals) -> None:
    """Sent when every mode has answered every prompt once, of more turns than any run would end."""
    arguments = ["bench", str(tiny_bundle), "--prompts", str(prompts), "--max-new-tokens", "4"]
    start = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    started = start + "from specexport.cli import main; main(sys.argv[1:])"
    with subprocess.Popen(
        [sys.executable, "-c", started, *arguments, "--repeat", "1000000", "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stderr is not None and process.stdout is not None
        lines = iter(process.stderr)
        assert any(line.startswith("a, plain, 2 of") for line in lines)
        process.send_signal(number)
        rest = list(lines)
        found = json.loads(process.stdout.read())
    assert process.returncode == 130 and rest[-1] == "interrupted\n"
    assert found["partial"] is True and found["summary"]["outputs_equal"] is True
