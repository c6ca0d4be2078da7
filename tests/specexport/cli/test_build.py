"""A build that ends early leaves the old bundle or none, and the next one starts clean."""

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from specexport.cli import main
from specruntime.bundle import load_manifest
from tests.conftest import RECIPES

TINY = RECIPES / "tiny-random.yaml"
HANG_BEFORE_THE_MANIFEST = """
import sys, time
import specexport.bundle.record
from specexport.cli import main
def hang(*arguments):
    sys.stderr.write("staged\\n")
    sys.stderr.flush()
    time.sleep(600)
specexport.bundle.record.write_manifest = hang
main(sys.argv[1:])
"""
BUILD = "import sys; from specexport.cli import main; main(sys.argv[1:])"


def build(output: Path, *options: str) -> Result:
    return CliRunner().invoke(main, ["build", str(TINY), "-o", str(output), *options])


def kill_at(line: str, script: str, output: Path, cache: Path) -> None:
    """Builds in a process of its own and kills it at the stage whose name begins with `line`."""
    environment = {**os.environ, "SPECEXPORT_CACHE": str(cache)}
    command = [sys.executable, "-c", script, "build", str(TINY), "-o", str(output)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr is not None
    heard = []
    for said in process.stderr:
        heard.append(said.strip())
        if said.startswith(line):
            break
    else:
        pytest.fail(f"the build never said {line!r}: {heard}")
    process.kill()
    assert process.wait(timeout=60) == -signal.SIGKILL
    process.stderr.close()


@pytest.mark.slow
def test_after_killed_builds_the_next_one_starts_clean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, output = tmp_path / "cache", tmp_path / "out" / "tiny.bundle"
    kill_at("loading the target", BUILD, output, cache)
    assert not output.exists()
    kill_at("staged", HANG_BEFORE_THE_MANIFEST, output, cache)
    assert not output.exists() and list(output.parent.iterdir()), "nothing was staged yet: nothing is tested"

    monkeypatch.setenv("SPECEXPORT_CACHE", str(cache))
    result = build(output)
    assert result.exit_code == 0, result.output
    assert [path.name for path in output.parent.iterdir()] == [output.name], "the killed build's remains"
    load_manifest(output)
    check = CliRunner().invoke(main, ["check", str(output)])
    assert check.exit_code == 0, check.output


def test_a_full_disk_leaves_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    output = tmp_path / "tiny.bundle"
    with monkeypatch.context() as patched:
        patched.setattr("specexport.bundle.record.write_build_record", full)
        result = build(output)
    assert result.exit_code == 1
    line = result.stderr.splitlines()[-1]
    assert line.startswith("error: the disk of") and "is full" in line and "free space" in line
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_the_old_bundle_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "tiny.bundle"
    assert build(output).exit_code == 0

    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (output / "build.json").write_text("{}")  # no longer what was built, so it is built again
    before = (output / "manifest.json").read_bytes()
    monkeypatch.setattr("specexport.bundle.record.write_build_record", full)
    assert build(output).exit_code == 1
    assert (output / "manifest.json").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == [output.name]


def test_what_is_not_a_bundle_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    result = build(tmp_path)
    assert result.exit_code == 1 and "is not a bundle; choose another -o" in result.stderr
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def refusal(recipe: Path, output: Path) -> str:
    """The line of a build that must be refused; it must have left nothing behind."""
    before = sorted(output.parent.iterdir()) if output.parent.is_dir() else []
    result = CliRunner().invoke(main, ["build", str(recipe), "-o", str(output)])
    assert result.exit_code == 1, result.output
    assert (sorted(output.parent.iterdir()) if output.parent.is_dir() else []) == before
    return result.stderr.splitlines()[-1]


def test_a_place_that_cannot_take_a_bundle_is_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "file").write_text("")
    for output, reason in (
        ("full", "holds no manifest.json"),
        ("file", "is not a bundle"),
        ("file/x", "not a directory"),
    ):
        result = CliRunner().invoke(main, ["build", str(TINY), "-o", str(tmp_path / output), "--force"])
        assert result.exit_code == 1
        assert reason in result.stderr.splitlines()[-1]
        assert "loading the target" not in result.stderr


def test_check_prompts_that_could_never_run_are_refused(tmp_path: Path) -> None:
    text = TINY.read_text().replace("vocab_size: 272", "vocab_size: 64")
    (tmp_path / "no-tokenizer.yaml").write_text(text)
    assert "write the prompts as lists of token ids" in refusal(
        tmp_path / "no-tokenizer.yaml", tmp_path / "out.bundle"
    )


def test_a_bundle_can_be_read_by_other_users(tiny_bundle: Path) -> None:
    modes = {path.stat().st_mode & 0o555 for path in tiny_bundle.rglob("*") if path.is_dir()}
    assert modes == {0o555}


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-3), ("bf16", 0.3)])
def test_a_bundle_for_a_device_this_host_lacks_is_built_and_says_it_was_not_timed(
    tmp_path: Path, precision: str, tolerance: float
) -> None:
    recipe, output = tmp_path / "cuda.yaml", tmp_path / "cuda.bundle"
    text = (
        TINY.read_text()
        .replace("provider: cpu", "provider: cuda")
        .replace("precision: fp32", f"precision: {precision}")
    )
    recipe.write_text(text.replace("tolerance: 1.0e-3", f"tolerance: {tolerance}"))
    result = CliRunner().invoke(main, ["build", str(recipe), "-o", str(output)])
    assert result.exit_code == 0, result.output
    for graph in json.loads((output / "build.json").read_text())["graphs"].values():
        assert graph["step_ms"] is None
        assert "CUDAExecutionProvider" in graph["step_ms_reason"]
        assert graph["parity"]["logit_difference"] <= tolerance
    refused = CliRunner().invoke(main, ["generate", str(output), "--prompt", "hi"])
    assert refused.exit_code == 1
    assert "specruntime[ort-gpu]" in refused.stderr
