"""Fixtures of the build side: a cache of its own, and a tiny saved checkpoint."""

from pathlib import Path

import pytest

from specexport.cache.entries import CACHE_VARIABLE
from specexport.checkpoints.loading import Checkpoint, load_checkpoint
from specexport.recipe.schema import RandomSource, Target

TINY_SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 272,
    "max_position_embeddings": 128,
}


def random_target(architecture: str = "llama", *, seed: int = 0, **sizes: int) -> Target:
    made = {"architecture": architecture, "sizes": {**TINY_SIZES, **sizes}, "seed": seed}
    return Target(source=RandomSource.model_validate({"random": made}))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache directory for this test."""
    directory = tmp_path / "cache"
    monkeypatch.setenv(CACHE_VARIABLE, str(directory))
    return directory


@pytest.fixture
def tiny(cache: Path) -> Checkpoint:
    """A llama of two layers with random weights and the byte tokenizer."""
    return load_checkpoint(random_target(), "fp32")


@pytest.fixture
def saved(tiny: Checkpoint, tmp_path: Path) -> Path:
    """`tiny` as a Hugging Face directory."""
    from transformers import AutoTokenizer

    directory = tmp_path / "saved"
    tiny.model.save_pretrained(directory)
    AutoTokenizer.from_pretrained(tiny.tokenizer).save_pretrained(directory)
    return directory
