"""What a recipe leaves out is chosen to fit its checkpoint, and the recipe of the README builds."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from specexport.checkpoints.fitting import fit_capacity, fit_check, require_usable_prompts
from specexport.checkpoints.random_model import TOKENIZER_SIZE, write_byte_tokenizer
from specexport.cli import main
from specexport.errors import CheckpointUnsupported
from specexport.graph.canonical import TOKENIZER_DIRECTORY, CanonicalGraph
from specexport.graph.files import GraphFacts
from specexport.recipe.schema import CHECK_TEXT, Recipe
from tests.conftest import REPOSITORY
from tests.specexport.conftest import TINY_SIZES


def recipe_of(positions: int, **keys: Any) -> Recipe:
    sizes = {**TINY_SIZES, "max_position_embeddings": positions}
    source = {"random": {"architecture": "llama", "sizes": sizes}}
    return Recipe.model_validate(
        {"name": "a", "target": {"source": source}, "draft": {"kind": "ngram"}, **keys}
    )


def drafted_by(positions: int) -> dict[str, Any]:
    source = recipe_of(positions).target.source
    assert not isinstance(source, str)
    return {"draft": {"kind": "model", "source": source.model_dump()}}


def test_the_capacity_is_what_every_model_has_positions_for_up_to_a_bound() -> None:
    assert fit_capacity(recipe_of(300)).capacity == 300
    assert fit_capacity(recipe_of(100_000)).capacity == 2048
    assert fit_capacity(recipe_of(300, **drafted_by(200))).capacity == 200
    assert (
        fit_capacity(
            recipe_of(300, draft={"kind": "model", "source": {"noise_of_target": {"scale": 1}}})
        ).capacity
        == 300
    )
    stated = recipe_of(300, capacity=400)
    assert fit_capacity(stated) is stated


def test_a_short_context_shortens_what_else_was_left_out() -> None:
    fitted = fit_capacity(recipe_of(40))
    assert (fitted.capacity, fitted.prefill_chunk, fitted.check.max_new_tokens) == (40, 10, 20)
    assert fitted.left_to_checkpoint == ("check.prompts",)


def test_a_context_too_short_for_what_was_written_is_refused_with_both() -> None:
    message = (
        r"^draft\.source: this model knows 100 positions, .*: capacity: found 100, expected at least 136"
    )
    with pytest.raises(CheckpointUnsupported, match=message):
        fit_capacity(recipe_of(300, prefill_chunk=128, **drafted_by(100)))


def canonical(
    directory: Path, capacity: int, vocab_size: int = TOKENIZER_SIZE, *, text: bool
) -> CanonicalGraph:
    tokenizer = directory / TOKENIZER_DIRECTORY
    if text:
        write_byte_tokenizer(tokenizer)
    facts = GraphFacts(capacity=capacity, layers=1, vocab_size=vocab_size, padded_vocab_size=272)
    return CanonicalGraph("key", directory, "tiny", facts, tokenizer if text else None, (), None)


@pytest.mark.parametrize(
    ("capacity", "text", "vocab_size"), [(256, True, 259), (40, True, 259), (256, False, 3)]
)
def test_prompts_that_were_left_out_fit_tokenizer_vocabulary_and_capacity(
    tmp_path: Path, capacity: int, text: bool, vocab_size: int
) -> None:
    target = canonical(tmp_path, capacity, vocab_size, text=text)
    fitted = fit_check(recipe_of(capacity, capacity=capacity), target)
    require_usable_prompts(fitted.check, target)
    (prompt,) = fitted.check.prompts
    assert (prompt == CHECK_TEXT) is (text and capacity == 256)
    assert fitted.left_to_checkpoint == ()


def test_prompts_that_were_written_stay(tmp_path: Path) -> None:
    written = recipe_of(256, check={"prompts": ["hello"]})
    assert fit_check(written, canonical(tmp_path, 256, text=False)) is written


@pytest.mark.slow
def test_the_smallest_recipe_of_the_readme_builds_and_checks(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", (REPOSITORY / "README.md").read_text(), re.DOTALL)
    assert set(yaml.safe_load(block)) == {"name", "target", "draft"}
    saved.rename(tmp_path / "my-model")
    (tmp_path / "recipe.yaml").write_text(block)
    monkeypatch.chdir(tmp_path)
    built = CliRunner().invoke(main, ["build", "recipe.yaml"])
    assert built.exit_code == 0, built.output
    assert built.stderr.count("fetching the checkpoint") == 1
    bundle = built.stdout.strip()
    manifest = json.loads((tmp_path / bundle / "manifest.json").read_text())
    assert manifest["target"]["capacity"] == TINY_SIZES["max_position_embeddings"]
    checked = CliRunner().invoke(main, ["check", bundle, "--pytorch"])
    assert checked.exit_code == 0, checked.output
    again = CliRunner().invoke(main, ["build", "recipe.yaml"])
    assert again.exit_code == 0 and "nothing changed" in again.stderr

    explicit = (tmp_path / "recipe.yaml").read_text() + "capacity: 2048\n"
    (tmp_path / "recipe.yaml").write_text(explicit)
    refused = CliRunner().invoke(main, ["build", "recipe.yaml"])
    assert (
        refused.exit_code == 1 and "recipe.yaml: capacity: found 2048, expected at most 128" in refused.stderr
    )
