"""What the latency tests measure: the real pair of the demo, at the number of threads its recipe names."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from specexport.bench.prompts import BenchPrompt, load_prompts
from specexport.build import build
from specexport.pytorch_reference import PytorchReference
from specexport.recipe.schema import Recipe, load_recipe
from specruntime import LoadedBundle, open_bundle
from specruntime.manifest.schema import stated_threads
from tests.conftest import RECIPES

PROMPTS = {prompt.id: prompt for prompt in load_prompts(RECIPES / "prompts" / "bench.jsonl")}
COPIES = ("edit", "copy", "quote")  # answers that repeat their prompt
PROSE = ("chat", "story")


def chosen(*ids: str) -> tuple[BenchPrompt, ...]:
    return tuple(PROMPTS[prompt] for prompt in ids)


@pytest.fixture(scope="session")
def recipe() -> Recipe:
    return load_recipe(RECIPES / "smollm2-135m-ngram.yaml")


@pytest.fixture(scope="session")
def real_bundle(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2-135M with n-gram drafts."""
    return build(recipe, tmp_path_factory.mktemp("latency") / "smollm2.bundle")


@pytest.fixture(scope="session")
def opened(real_bundle: Path) -> Iterator[LoadedBundle]:
    with open_bundle(real_bundle) as bundle:
        yield bundle


@pytest.fixture(scope="session")
def reference(real_bundle: Path, opened: LoadedBundle) -> PytorchReference:
    return PytorchReference.of_bundle(real_bundle, stated_threads(opened.manifest.target))
