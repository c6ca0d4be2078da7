"""A tiny target of random weights with six layers, and prompts for it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from specexport.checkpoints.loading import Checkpoint, load_checkpoint
from specexport.recipe.schema import Recipe, load_recipe
from specexport.training.kinds import Kind, Shape
from specexport.training.loop import TrainingPlan
from specexport.training.pipeline import Order
from specexport.training.prompts_file import append_prompts

RECIPE = """
name: tiny
target:
  source:
    random:
      architecture: llama
      sizes: {hidden_size: 32, intermediate_size: 64, num_hidden_layers: 6, num_attention_heads: 4,
              num_key_value_heads: 2, vocab_size: 272, max_position_embeddings: 512, initializer_range: 0.2}
capacity: 256
draft: {kind: none}
check: {prompts: ["a"]}
"""


@pytest.fixture
def recipe(cache: Path, tmp_path: Path) -> Recipe:
    path = tmp_path / "tiny.yaml"
    path.write_text(RECIPE)
    return load_recipe(path)


@pytest.fixture
def target(recipe: Recipe) -> Checkpoint:
    return load_checkpoint(recipe.target, "fp32")


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    append_prompts(path, [f"question {n}" for n in range(80)])
    return path


@pytest.fixture
def order(prompts: Path) -> Callable[[Kind], Order]:
    def make(kind: Kind) -> Order:
        return Order(
            kind=kind,
            prompts=prompts,
            out=prompts.parent / kind,
            work=prompts.parent / "work",
            shape=Shape(depth=3, vocabulary=128),
            plan=TrainingPlan(epochs=3, tokens_per_step=512, learning_rate=3e-3),
            answer_tokens=16,
        )

    return make
