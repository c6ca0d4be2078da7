"""What recipe, config and tokenizer say against a build is said before weights are read, by a dry run as well."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

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


@pytest.mark.parametrize("options", [(), ("--dry-run",)], ids=["build", "dry run"])
@pytest.mark.parametrize(
    ("keys", "line"), CASES, ids=lambda value: value[:30] if isinstance(value, str) else ""
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
