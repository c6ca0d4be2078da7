"""What recipe, config and tokenizer say against a build is said before weights are read, by a dry run as well."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from click.testing import CliRunner, Result
from safetensors.torch import save_file

from specexport.cli import main
from tests.conftest import RECIPES
from tests.specexport.conftest import TINY_SIZES

NGRAM = {"kind": "ngram"}


def run(directory: Path, *options: str, target: Any, draft: Any = NGRAM, **keys: Any) -> Result:
    recipe = directory / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({"name": "a", "target": {"source": target}, "draft": draft, **keys}))
    return CliRunner().invoke(main, ["build", str(recipe), "-o", str(directory / "a.bundle"), *options])


def refusal(result: Result) -> str:
    assert result.exit_code == 1, result.output
    return result.stderr.splitlines()[-1].partition("recipe.yaml: ")[2]


def random(**sizes: Any) -> dict[str, Any]:
    return {"random": {"architecture": "llama", "sizes": {**TINY_SIZES, **sizes}}}


CASES = [
    ({"check": {"prompts": ["a" * 200]}}, "check.prompts[0]: found 200 tokens, expected at most 64"),
    ({"check": {"prompts": [[1, 2, 999]]}}, "check.prompts[0]: found token id 999, expected 0..258"),
    ({"check": {"prompts": ["hello"], "chat": True}}, "check.chat: found true, but "),
    ({"capacity": 256}, "capacity: found 256, expected at most 128, the positions that "),
    (
        {"capacity": 128, "draft": {"kind": "model", "k": 2, "source": random(max_position_embeddings=64)}},
        "draft.source: random llama (seed 0) knows 64 positions, expected at least 128, the recipe's capacity; set "
        "draft.capacity: 64",
    ),
    (
        {
            "capacity": 128,
            "prefill_chunk": 16,
            "draft": {
                "kind": "model",
                "k": 2,
                "capacity": 96,
                "source": random(max_position_embeddings=64),
            },
        },
        "draft.capacity: found 96, expected at most 64, the positions that random llama (seed 0) knows; lower it",
    ),
]

DRAFT_CASES: list[tuple[dict[str, Any], str]] = [
    (
        {"draft": {"kind": "layer_skip", "layers": [0, 5]}},
        "draft.layers: found 2 layers up to 5, expected fewer than all of 0 to 1, the layers of ",
    ),
    (
        {"draft": {"kind": "layer_skip", "layers": [0, 1]}},
        "draft.layers: found 2 layers up to 1, expected fewer than all",
    ),
    ({"draft": {"kind": "layer_skip", "exit_after": 2}}, "draft.exit_after: found 2, expected at most 1: "),
    (
        {"draft": {"kind": "medusa", "k": 5, "source": {"random": {"heads": 3}}}},
        "draft.k: found 5, expected at most 3, the heads of random medusa",
    ),
    (
        {"weights": {"format": "int4", "block": 128, "lm_head": {"format": "fp32"}, "activations": "fine"}},
        "weights.block: found 128, expected one that divides 32, the inputs of layers of ",
    ),
    (
        {"weights": {"format": "int4", "block": 128}},
        "weights.block: found 128, expected one",
    ),
]


def test_blocks_that_divide_or_need_not_are_let_through(saved: Path, tmp_path: Path) -> None:
    for weights in (
        {"format": "int4", "block": 32},
        {"format": "int8", "block": 128, "lm_head": {"format": "int8", "activations": "blocks"}},
    ):
        result = run(tmp_path, "--dry-run", target=str(saved), weights=weights)
        assert result.exit_code == 0, result.output


@pytest.mark.parametrize("options", [(), ("--dry-run",)], ids=["build", "dry run"])
@pytest.mark.parametrize(
    ("asked", "config", "names", "words"),
    [
        (
            "eagle3",
            {},
            ["fc.weight", "layers.0.mlp.up_proj.weight"],
            "a draft of kind 'eagle', and the recipe says",
        ),
        (
            "eagle",
            {},
            ["fc.weight", "midlayer.mlp.up_proj.weight"],
            "a draft of kind 'eagle3', and the recipe says",
        ),
        (
            "eagle",
            {"speculators_model_type": "eagle3"},
            ["x"],
            "a draft of kind 'eagle3', and the recipe says",
        ),
        (
            "eagle",
            {"medusa_num_heads": 3},
            ["0.0.linear.weight"],
            "a draft of kind 'medusa', and the recipe says",
        ),
        ("medusa", {}, ["fc.weight", "midlayer.x"], "a draft of kind 'eagle3', and the recipe says"),
        (
            "medusa",
            {"medusa_num_layers": 1},
            ["0.0.linear.weight"],
            "medusa_num_heads is None in config.json",
        ),
        (
            "medusa",
            {"medusa_num_heads": 2, "medusa_num_layers": 1},
            ["0.0.linear.weight"],
            "draft.k: found 3, expected at most 2, the heads of ",
        ),
    ],
)
def test_a_draft_of_another_kind_is_refused_before_weights_are_read(
    saved: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    asked: str,
    config: dict[str, Any],
    names: list[str],
    words: str,
    options: tuple[str, ...],
) -> None:
    monkeypatch.setattr(
        "specexport.checkpoints.loading._read_weights", lambda *args: pytest.fail("weights were read")
    )
    place = tmp_path / "files"
    place.mkdir()
    (place / "config.json").write_text(json.dumps(config))
    save_file({name: torch.zeros(1) for name in names}, place / "model.safetensors")
    draft = {"kind": asked, "source": str(place), "k": 3}
    found = refusal(run(tmp_path, *options, target=str(saved), draft=draft))
    assert words in found and found.startswith("draft.")


@pytest.mark.parametrize("options", [(), ("--dry-run",)], ids=["build", "dry run"])
@pytest.mark.parametrize(
    ("keys", "line"), [*CASES, *DRAFT_CASES], ids=lambda value: value[:30] if isinstance(value, str) else ""
)
def test_a_refusal_that_needs_no_weights_comes_before_they_are_read(
    saved: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    keys: dict[str, Any],
    line: str,
    options: tuple[str, ...],
) -> None:
    monkeypatch.setattr(
        "specexport.checkpoints.loading._read_weights", lambda *args: pytest.fail("weights were read")
    )
    if "chat" in keys.get("check", {}):
        (saved / "chat_template.jinja").unlink()
    assert refusal(run(tmp_path, *options, target=str(saved), **keys)).startswith(line)


def test_a_draft_with_other_positions_is_refused_naming_it_once_it_is_made(
    cache: Path, tmp_path: Path
) -> None:
    """Nothing is known of random models before; they are made in no time."""
    draft = {"kind": "model", "k": 2, "source": random(max_position_embeddings=64)}
    result = run(tmp_path, target=random(), draft=draft, capacity=128)
    assert refusal(result).startswith("draft.source: random llama (seed 0) knows 64 positions")


def test_a_dry_run_reads_and_writes_nothing_and_estimates_what_is_there(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sizes by the file of weights itself and by the config."""
    weights = saved / "model.safetensors"
    size = weights.stat().st_size
    weights.write_bytes(b"")
    draft = {"kind": "model", "k": 2, "source": str(saved), "capacity": 96}
    result = run(tmp_path, "--dry-run", "--json", target=str(saved), draft=draft, prefill_chunk=16)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert not (tmp_path / "a.bundle").exists()
    assert (found["builds"], found["capacity"], found["draft_capacity"]) == (True, 128, 96)
    for side, capacity in (("target", 128), ("draft", 96)):
        graph = found["graphs"][side]
        assert graph["weights_mb"] * 1e6 == pytest.approx(size, rel=0.02)
        heads, head_dim = TINY_SIZES["num_key_value_heads"], 8
        assert graph["kv_bytes_per_token"] == 2 * 4 * heads * head_dim * TINY_SIZES["num_hidden_layers"]
        assert graph["kv_cache_mb"] * 1e6 == graph["kv_bytes_per_token"] * capacity
        assert graph["tokenizer"] and graph["chat_template"]


def test_notes_on_the_tokenizer_name_the_checkpoint_where_it_lies_now(saved: Path, tmp_path: Path) -> None:
    (saved / "chat_template.jinja").write_text("{{ strftime_now('%d') }}")
    moved = tmp_path / "moved"
    for source in (saved, moved):
        if source == moved:
            saved.rename(moved)
        found = json.loads(run(tmp_path, "--dry-run", "--json", target=str(source)).stdout)
        (note,) = found["notes"]
        assert note.startswith(f"{source}: the chat template asks for today's date")
        assert f"note     {note}" in run(tmp_path, "--dry-run", target=str(source)).stdout.splitlines()
        built = run(tmp_path, target=str(source))
        assert built.exit_code == 0, built.output
        assert note in built.stderr


def test_a_dry_run_says_in_words_what_it_estimates(cache: Path, tmp_path: Path) -> None:
    command = ["build", str(RECIPES / "tiny-random.yaml"), "-o", str(tmp_path / "b"), "--dry-run"]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.output
    for line in (
        "tiny-random builds",
        "capacity 256 tokens",
        "target   llama, 2 layers",
        "open     whether the",
    ):
        assert line in result.stdout
