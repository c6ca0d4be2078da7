"""Commands that look into a bundle, on every kind of draft."""

import json
import re
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from specexport.build import build
from specexport.cli import main
from specexport.recipe.schema import load_recipe
from specruntime.bundle import load_manifest
from specruntime.drafts import LayerSkipDraft
from specruntime.inspection.summary import kernels_here
from tests.conftest import RECIPES
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
    attention = "GroupQueryAttention" if kernels_here(manifest.target)[0] is None else "WindowAttention"
    layers = {name: counted(operators, attention) for name, operators in windows.items()}
    if isinstance(manifest.draft, LayerSkipDraft):
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


def test_no_text_says_none(bundle: Path) -> None:
    require_no_none(bundle)


DRAFTS = [
    None,
    {"kind": "none"},
    {"kind": "ngram"},
    {"kind": "ngram", "adaptive": True},
]


@pytest.mark.parametrize("draft", DRAFTS, ids=str)
def test_no_text_of_the_other_kinds_says_none(tmp_path: Path, draft: dict[str, object] | None) -> None:
    """Of recipes/tiny-random.yaml, and with these drafts in place of its own."""
    document = yaml.safe_load((RECIPES / "tiny-random.yaml").read_text())
    if draft is not None:
        del document["verify_widths"]
        document["draft"] = draft
    recipe = tmp_path / "tiny.yaml"
    recipe.write_text(yaml.safe_dump(document))
    require_no_none(build(load_recipe(recipe), tmp_path / "tiny.bundle"))


def require_no_none(bundle: Path) -> None:
    """Of the commands for people: what is not there is left out, or named."""
    few = ("--max-new-tokens", "6")
    for command in (("inspect",), ("inspect", "--memory"), ("inspect", "--memory", "--budget", "1GB")):
        assert not re.search(r"\b(None|null)\b", run(*command, str(bundle))), command
    for name in ("check", "profile"):
        assert not re.search(r"\bNone\b", run(name, str(bundle), *few, "--threads", "1")), name
    done = CliRunner().invoke(main, ["generate", str(bundle), "--prompt", "abc", "--stats", *few])
    assert done.exit_code == 0 and "None" not in done.stderr
