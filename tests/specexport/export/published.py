"""Checkpoints with the config keys that strangers publish, made small: by a user's recipe, and PyTorch's own answer.

configs/*.jsonl holds one config.json per line: the keys that the named checkpoint publishes, with small sizes. Where
`published` is null, the keys are the class's own sizes. No key is added, since what a class does without one is what
goes wrong. `refused` are those that their config refuses, `traced` those that the trace does.

A trace takes seconds, so tests build the bundles of the lines with `built` only: together they call every operator that
any line calls, in the same way (`test_published_families`). The others decode without a graph. `make test-families`
sets SPECEXPORT_ALL_FAMILIES and builds all of them.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedModel

from specexport.build import build
from specexport.checkpoints.named import RecipeCheckpoints
from specexport.checkpoints.outline import outline_recipe
from specexport.context import quiet
from specexport.export import CacheLayout, check_supported, freeze_rope
from specexport.recipe.schema import Recipe, load_recipe
from specruntime import SamplingParams, generate, open_bundle
from specruntime.engines import EngineOptions
from tests.specexport.export.eager_windows import EagerWindows

CONFIGS = Path(__file__).parent / "configs"
GROUPS = ("dense", "windows", "experts")
POSITIONS = 64
# Longer than every window, and beyond the original context of every scaled rotary embedding.
PROMPT = [(7 * n + 3) % 150 + 5 for n in range(40)]
ANSWER = 16
CHECKPOINT = "checkpoint"
ALL_FAMILIES = bool(os.environ.get("SPECEXPORT_ALL_FAMILIES"))


@dataclass(frozen=True)
class Published:
    """One line of a file: `checkpoint` is whose config it is, None for the class's own."""

    checkpoint: str | None
    config: dict[str, Any]
    built: bool = False

    @property
    def model_type(self) -> str:
        return str(self.config["model_type"])

    def __str__(self) -> str:
        return (self.checkpoint or self.model_type).rpartition("/")[2]


def published(group: str) -> tuple[Published, ...]:
    lines = (CONFIGS / f"{group}.jsonl").read_text().splitlines()
    return tuple(
        Published(row["published"], row["config"], row.get("built", False)) for row in map(json.loads, lines)
    )


def write_checkpoint(found: Published, place: Path, seed: int = 0) -> PreTrainedModel:
    """Random weights that every part of the model moves the logits by, under the config as published."""
    place.mkdir()
    config = json.dumps(found.config)
    (place / "config.json").write_text(config)
    torch.manual_seed(seed)
    read = AutoConfig.from_pretrained(place)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(read, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim < 2:
                parameter.add_(torch.randn(parameter.shape) * 0.05)
            else:
                parameter.normal_(std=1.2 * parameter.shape[-1] ** -0.5)
    model.save_pretrained(place)
    (place / "config.json").write_text(config)
    return model


def recipe_of(place: Path) -> Recipe:
    """A recipe of three keys for the checkpoint in `place`."""
    recipe = place / "recipe.yaml"
    recipe.write_text(f"name: stranger\ntarget:\n  source: ./{CHECKPOINT}\ndraft:\n  kind: ngram\n")
    return load_recipe(recipe)


def build_published(place: Path) -> Path:
    """The bundle for the checkpoint in `place`, as `specexport build` makes it."""
    return build(recipe_of(place), place / "bundle")


def load_published(place: Path) -> tuple[PreTrainedModel, CacheLayout, int, int]:
    """The checkpoint in `place` as a build has it before its trace, the cache's capacity and the vocabulary's size."""
    recipe, _ = outline_recipe(recipe_of(place))
    checkpoint = RecipeCheckpoints(recipe, lambda stage: None).loader("target")()
    layout = check_supported(checkpoint.model)
    freeze_rope(checkpoint.model, recipe.capacity)
    return checkpoint.model, layout, recipe.capacity, checkpoint.vocab_size


def built_rows(group: str, *families: str) -> list[Any]:
    """The parameters of a group's builds: seconds each, so all but those of `families` are left to `make test`."""
    return [
        pytest.param(row, id=str(row), marks=() if row.model_type in families else pytest.mark.slow)
        for row in published(group)
        if row.built or ALL_FAMILIES
    ]


def other_rows(group: str) -> list[Any]:
    """The parameters of a group's lines that `make test` does not build."""
    return [pytest.param(row, id=str(row)) for row in published(group) if not row.built]


def expected_answer(place: Path) -> list[int]:
    """What transformers' `generate` answers greedily with the checkpoint in `place`."""
    model = AutoModelForCausalLM.from_pretrained(
        place / CHECKPOINT, dtype=torch.float32, attn_implementation="eager"
    )
    model.generation_config = GenerationConfig()  # greedy, and no end token: both answers are as long
    prompt = torch.tensor([PROMPT])
    settings: dict[str, Any] = {"do_sample": False, "max_new_tokens": ANSWER, "pad_token_id": 0}
    with torch.no_grad():
        expected = model.generate(prompt, attention_mask=torch.ones_like(prompt), **settings)
    answer: list[int] = expected[0, len(PROMPT) :].tolist()
    return answer


def require_equal_answers(found: Published, place: Path) -> None:
    """Builds the bundle and compares its greedy answer with that of transformers' `generate` on the same files."""
    with quiet():
        write_checkpoint(found, place / CHECKPOINT)
        bundle = build_published(place)
        expected = expected_answer(place)
    with open_bundle(bundle, options=EngineOptions(threads=1)) as opened:
        params = SamplingParams(max_tokens=ANSWER, ignore_eos=True)
        answer = generate(opened.new_session(), PROMPT, params)
        tokens = [token for delta in answer for token in delta.tokens]
    assert tokens == expected


def require_equal_windows(found: Published, place: Path) -> None:
    """Decodes under the exporter's hooks, without a graph, and compares as `require_equal_answers` does."""
    with quiet():
        write_checkpoint(found, place / CHECKPOINT)
        model, layout, capacity, vocab_size = load_published(place)
        windows = EagerWindows(model, layout, capacity=capacity, vocab_size=vocab_size)
        assert windows.decode(PROMPT, ANSWER) == expected_answer(place)
