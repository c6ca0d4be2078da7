"""The `specexport` command: what it loads, what it prints, and one line for each bad input."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from specexport.cli import main
from specexport.cli.schema import render_schema
from specruntime import load_manifest
from tests.conftest import RECIPES, REPOSITORY

TINY = RECIPES / "tiny-random.yaml"
COMMANDS = (
    "build", "generate", "check", "bench", "tune", "inspect", "profile", "serve", "deploy", "schema", "train",
    "write-prompts", "cache",
)  # fmt: skip


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def refusal(*arguments: str | Path) -> str:
    """The one line of a command that must be refused."""
    result = run(*arguments)
    assert result.exit_code == 1, result.output
    assert "Traceback" not in result.output
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and result.stderr.splitlines()[-1] == errors[0], result.stderr
    return errors[0]


@pytest.fixture
def recipe(tmp_path: Path) -> Callable[..., Path]:
    """Writes the tiny recipe with some keys replaced; `draft__k=3` reaches into `draft`."""

    def write(**changes: Any) -> Path:
        document = yaml.safe_load(TINY.read_text())
        for key, value in changes.items():
            *parents, last = key.split("__")
            place = document
            for parent in parents:
                place = place[parent]
            place[last] = value
        path = tmp_path / "recipe.yaml"
        path.write_text(yaml.safe_dump(document))
        return path

    return write


def loaded_modules(*arguments: str) -> set[str]:
    script = (
        "import sys\nfrom specexport.cli import main\n"
        f"main({list(arguments)!r}, standalone_mode=False)\nsys.stderr.write(' '.join(sys.modules))"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (REPOSITORY, REPOSITORY / "runtime"))),
    }
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
        check=True,
    )
    return set(done.stderr.split())


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["generate", "{bundle}", "--prompt", "ab", "--max-new-tokens", "2"], ["schema", "recipe"]],
)
def test_what_needs_no_pytorch_does_not_load_it(tiny_bundle: Path, arguments: list[str]) -> None:
    loaded = loaded_modules(*(argument.format(bundle=tiny_bundle) for argument in arguments))
    assert "specexport.cli" in loaded
    assert loaded & {"torch", "transformers", "onnx", "optimum", "matplotlib"} == set()


def test_these_are_the_commands() -> None:
    assert tuple(main.commands) == COMMANDS
    shown = run("--help").stdout
    assert all(f"\n  {command} " in shown for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str) -> None:
    result = run(command, "--help")
    assert result.exit_code == 0 and result.stdout.startswith(f"Usage: main {command} ")
    told = main.commands[command].help
    assert told and " ".join(told.split())[:60] in " ".join(result.stdout.split())


def test_check_follows_a_prompt_that_the_bundle_has(tiny_bundle: Path) -> None:
    prompt = load_manifest(tiny_bundle).check.prompts[0].id
    result = run("check", str(tiny_bundle), "--trace", prompt)
    assert result.exit_code == 0 and result.stdout.count("the answers do not differ; the last round") == 2
    assert "no check prompt 'nowhere'" in refusal("check", tiny_bundle, "--trace", "nowhere")


@pytest.mark.parametrize("name", ["recipe", "manifest"])
def test_schema_prints_the_published_one(name: str) -> None:
    assert run("schema", name).stdout == render_schema("recipe" if name == "recipe" else "manifest")


@pytest.mark.parametrize(
    "arguments",
    [
        ["build"],
        ["schema", "receipt"],
        ["bench", "x.bundle"],
        ["bench", "x", "--prompts", "p", "--repeat", "0"],
        ["generate"],
        ["check"],
        ["check", "x.bundle", "--trace", "a", "--pytorch"],
        ["inspect"],
        ["serve"],
        ["deploy", "nomad", "x.bundle"],
        ["tune", "x.bundle"],
        ["tune", "x.bundle", "--prompts", "p", "--tried", "0"],
        ["tune", "x.bundle", "--prompts", "p", "--write", "no-such-recipe.yaml"],
        ["profile"],
        ["profile", "x.bundle", "--max-new-tokens", "0"],
        ["train", "r.yaml", "--prompts", "p", "--out", "d"],
        ["train", "r.yaml", "--kind", "oracle", "--prompts", "p", "--out", "d"],
        ["train", "r.yaml", "--kind", "medusa", "--prompts", "p", "--out", "d", "--layers", "0,1"],
        ["write-prompts", "r.yaml", "-o", "f"],
        ["write-prompts", "r.yaml", "--count", "0", "-o", "f"],
    ],
    ids=" ".join,
)
def test_usage_errors_exit_2(arguments: list[str]) -> None:
    result = run(*arguments)
    assert result.exit_code == 2 and "Usage:" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["generate", "nowhere", "--prompt", "a"],
        ["check", "nowhere"],
        ["inspect", "nowhere"],
        ["profile", "nowhere"],
        ["bench", "nowhere", "--prompts", "{prompts}"],
        ["bench", "{bundle}", "--prompts", "nowhere"],
        ["tune", "nowhere", "--prompts", "{prompts}"],
        ["tune", "{bundle}", "--prompts", "nowhere"],
        ["deploy", "ray", "nowhere", "-o", "out"],
        ["deploy", "triton", "nowhere", "-o", "out"],
        ["build", "nowhere"],
        ["train", "nowhere", "--kind", "medusa", "--prompts", "{prompts}", "--out", "out"],
        ["train", "{recipe}", "--kind", "medusa", "--prompts", "nowhere", "--out", "out"],
        ["write-prompts", "nowhere", "--count", "1", "-o", "out"],
        ["write-prompts", "{recipe}", "--count", "1", "-o", "out", "--exclude", "nowhere"],
    ],
    ids=" ".join,
)
def test_what_is_not_there_is_refused_by_name_and_nothing_is_written(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"id": "a", "prompt": "abc"}\n')
    monkeypatch.chdir(tmp_path)
    places = {"bundle": tiny_bundle, "prompts": prompts, "recipe": TINY}
    assert "nowhere" in refusal(*(argument.format(**places) for argument in arguments))
    assert list(tmp_path.iterdir()) == [prompts]


def test_an_unknown_recipe_key_is_named_with_the_nearest(recipe: Callable[..., Path]) -> None:
    line = refusal("build", recipe(capcity=128))
    assert "capcity" in line and "did you mean 'capacity'" in line


def test_each_mistake_of_a_recipe_has_its_own_line(recipe: Callable[..., Path]) -> None:
    result = run("build", recipe(capcity=128, precison="fp32"))
    lines = result.stderr.splitlines()
    assert result.exit_code == 1 and len(lines) == 2
    assert all(line.startswith("error: ") for line in lines)


def test_a_missing_recipe_is_named(tmp_path: Path) -> None:
    assert "none.yaml: no such recipe file" in refusal("build", tmp_path / "none.yaml")


def test_a_missing_checkpoint_is_named(recipe: Callable[..., Path], tmp_path: Path) -> None:
    line = refusal("build", recipe(target__source="./nowhere"), "-o", tmp_path / "out")
    assert "nowhere" in line and not (tmp_path / "out").exists()


def test_a_draft_of_another_tokenizer_is_refused_with_both_names(
    recipe: Callable[..., Path], tmp_path: Path
) -> None:
    draft = {
        "architecture": "llama",
        "sizes": {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
                  "num_key_value_heads": 1, "max_position_embeddings": 512, "vocab_size": 100},
        "seed": 7,
    }  # fmt: skip
    line = refusal("build", recipe(draft__source={"random": draft}), "-o", tmp_path / "out")
    assert "random llama (seed 7)" in line and "random llama (seed 0)" in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("architecture", "reason"), [("t5", "encoder-decoder"), ("mamba", "mamba"), ("lama", "llama")]
)
def test_an_unsupported_architecture_is_refused_with_the_reason(
    recipe: Callable[..., Path], tmp_path: Path, architecture: str, reason: str
) -> None:
    random = {"architecture": architecture, "sizes": {"vocab_size": 272}, "seed": 0}
    changed = recipe(target__source={"random": random}, draft={"kind": "none"}, verify_widths=[])
    assert reason in refusal("build", changed, "-o", tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["recipe.yaml"]


def test_a_capacity_too_small_for_the_width_names_both(recipe: Callable[..., Path]) -> None:
    result = run("build", recipe(capacity=24))
    assert result.exit_code == 1
    window, draft, answer = (line for line in result.stderr.splitlines() if line.startswith("error: "))
    assert "capacity: found 24, expected at least 40" in window and "prefill_chunk or draft.k + 1" in window
    assert "draft.capacity: found 256, expected at most capacity = 24" in draft
    assert "check.max_new_tokens: found 48, expected less than capacity = 24" in answer


def test_a_bundle_from_a_newer_version_says_so(tiny_bundle: Path, tmp_path: Path) -> None:
    newer = tmp_path / "newer.bundle"
    shutil.copytree(tiny_bundle, newer)
    manifest = json.loads((newer / "manifest.json").read_text())
    (newer / "manifest.json").write_text(json.dumps({**manifest, "schema_version": 99, "new_key": 1}))
    for command in (["inspect"], ["check"], ["generate", "--prompt", "a"]):
        line = refusal(command[0], newer, *command[1:])
        assert "schema version 99" in line and "upgrade specruntime" in line


def test_a_prompt_longer_than_the_capacity_names_the_key_to_raise(tiny_bundle: Path, tmp_path: Path) -> None:
    prompt = tmp_path / "long.txt"
    prompt.write_text("x" * 400)
    line = refusal("generate", tiny_bundle, "--prompt-file", prompt)
    assert "400 tokens" in line and "raise `capacity` in the recipe" in line


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPECEXPORT_DEBUG", "1")
    result = run("inspect", tmp_path / "none")
    assert result.exception is not None and not isinstance(result.exception, SystemExit)


def test_build_prints_where_the_bundle_is_and_skips_what_did_not_change(tmp_path: Path) -> None:
    output = tmp_path / "tiny.bundle"
    first = run("build", TINY, "-o", output, "--json")
    assert first.exit_code == 0, first.output
    assert json.loads(first.stdout)["bundle"] == str(output)
    written = (output / "manifest.json").stat().st_mtime_ns
    again = run("build", TINY, "-o", output)
    assert again.exit_code == 0 and again.stdout == f"{output}\n"
    assert "nothing changed" in again.stderr
    assert (output / "manifest.json").stat().st_mtime_ns == written


def test_no_command_takes_an_option_twice() -> None:
    assert set(COMMANDS) <= set(main.commands)
    for name, command in main.commands.items():
        options = [text for each in command.params for text in each.opts if text.startswith("--")]
        assert len(options) == len(set(options)), f"{name}: {sorted(options)}"
