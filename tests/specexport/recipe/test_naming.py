"""What a build refuses after reading the recipe names the recipe's file and the key to change."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from specexport.checkpoints.refusals import SUPPORTED
from specexport.cli import main
from specexport.errors import CheckpointUnsupported, SourceError, TokenizerMismatch
from specexport.recipe.sources import naming_file, naming_source
from tests.specexport.conftest import TINY_SIZES
from tests.specexport.export.architectures import EXPORTED

NGRAM = {"kind": "ngram"}


def refusal(directory: Path, target: Any, draft: Any = NGRAM, **keys: Any) -> str:
    path = directory / "recipe.yaml"
    document = {"name": "a", "target": {"source": target}, "draft": draft, **keys}
    path.write_text(yaml.safe_dump(document))
    result = CliRunner().invoke(main, ["build", str(path), "-o", str(directory / "a.bundle")])
    assert result.exit_code == 1, result.output
    return result.stderr.splitlines()[-1].removeprefix(f"error: {path}: ")


def random(architecture: str = "llama", **sizes: Any) -> dict[str, Any]:
    return {"random": {"architecture": architecture, "sizes": {**TINY_SIZES, **sizes}}}


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("./nosuch", "target.source: {directory}/nosuch: no such directory"),
        ("./nosuch.gguf", "target.source: {directory}/nosuch.gguf: no such file"),
        (
            random("lama"),
            "target.source.random.architecture: found 'lama', expected a transformers model type",
        ),
        (
            random(hiden_size=3),
            "target.source.random.sizes.hiden_size: LlamaConfig has no such key; did you mean",
        ),
        (
            random(num_attention_heads=5),
            "target.source.random.sizes: LlamaConfig does not take them: The hidden size (32) is not a multiple of "
            "the number of attention heads (5).",
        ),
        (
            random("bloom", hiden_size=3),
            "target.source: random bloom (seed 0): bloom computes attention without transformers' attention",
        ),
        (
            random("clip"),
            "target.source: random clip (seed 0): clip is not a causal language model in transformers",
        ),
        (
            random(max_position_embeddings=16),
            "target.source: this model knows 16 positions, so capacity cannot be",
        ),
    ],
    ids=["directory", "gguf", "architecture", "size key", "sizes", "unsupported", "not causal", "positions"],
)
def test_a_source_is_refused_by_file_and_key(cache: Path, tmp_path: Path, source: Any, line: str) -> None:
    assert refusal(tmp_path, source).startswith(line.format(directory=tmp_path))


def test_the_drafts_source_is_told_from_the_targets(cache: Path, tmp_path: Path) -> None:
    for kind in ("model", "eagle3"):
        line = refusal(tmp_path, random(), {"kind": kind, "source": "./nosuch"})
        assert line.startswith(f"draft.source: {tmp_path}/nosuch: no such directory")


@pytest.mark.slow
def test_what_shows_only_after_the_export_is_told_so_too(cache: Path, tmp_path: Path) -> None:
    line = refusal(tmp_path, random(), check={"prompts": [[999]]})
    assert line.startswith("check.prompts[0]: found token id 999")
    line = refusal(tmp_path, random(), capacity=256)
    assert line.startswith("capacity: found 256, expected at most 128, the positions that random llama")


def test_a_message_that_has_its_key_or_is_about_something_else_stays_as_it_is() -> None:
    with pytest.raises(CheckpointUnsupported, match=r"^capacity: found 3"), naming_source("draft"):
        raise CheckpointUnsupported("found 3", key="capacity")
    with pytest.raises(SourceError, match=r"^/some/cache: disk full"), naming_file("r.yaml"):
        raise SourceError("/some/cache: disk full")
    with pytest.raises(TokenizerMismatch, match=r"^r\.yaml: draft a has"), naming_file("r.yaml"):
        raise TokenizerMismatch("draft a has another tokenizer")


def test_the_architectures_that_a_refusal_offers_are_under_test() -> None:
    assert set(SUPPORTED) <= {architecture.model_type for architecture in EXPORTED}
