"""Commands that look into a bundle, on every kind of draft."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from specexport.cli import main
from specruntime.bundle import load_manifest
from tests.e2e.conftest import DRAFT_KINDS, Built


@pytest.fixture(params=DRAFT_KINDS)
def bundle(request: pytest.FixtureRequest, built: Built) -> Path:
    return built(request.param)


def run(*arguments: str) -> str:
    done = CliRunner().invoke(main, list(arguments))
    assert done.exit_code == 0, done.output
    return done.stdout


def test_a_profile_takes_every_window_of_every_graph_apart(bundle: Path) -> None:
    found = json.loads(run("profile", str(bundle), "--max-new-tokens", "6", "--threads", "1", "--json"))
    manifest = load_manifest(bundle)
    windows = {w["profile"]: w["operators"] for w in found["windows"] if w["graph"] == "target"}
    assert set(windows) == {profile.name for profile in manifest.target.profiles} and all(windows.values())
    layers = {name: counted(operators, "GroupQueryAttention") for name, operators in windows.items()}
    if manifest.draft.kind == "layer_skip":
        assert layers.pop("draft") == len(manifest.draft.layers)
    assert set(layers.values()) == {manifest.target.layers}


def counted(operators: list[dict[str, object]], name: str) -> int:
    return sum(int(str(operator["count"])) for operator in operators if operator["name"] == name)


def test_memory_and_prediction_are_told(bundle: Path, tmp_path: Path) -> None:
    assert "of KV cache a token" in run("inspect", str(bundle), "--memory")
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"id": "a", "prompt": "abcabc", "category": "copy"}\n')
    arguments = ("--prompts", str(prompts), "--max-new-tokens", "12", "--tried", "1", "--minutes", "0.05")
    tuned = json.loads(run("tune", str(bundle), *arguments, "--threads", "1", "--json"))
    assert [found["kind"] for found in tuned["bundles"]] == [load_manifest(bundle).draft.kind]
