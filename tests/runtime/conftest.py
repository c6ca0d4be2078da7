"""What tests of the runtime share: the tiny bundle, built for several sequences a launch; a caller of the flat API."""

from pathlib import Path

import pytest

from specexport.build import build
from specexport.recipe.schema import load_recipe
from tests.conftest import RECIPES
from tests.runtime.flat.flat_calls import Caller


@pytest.fixture(scope="session")
def batched_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """recipes/tiny-random.yaml with batches of up to 8. Read it, never write it."""
    recipe = load_recipe(RECIPES / "tiny-random.yaml").model_copy(update={"batch": (1, 2, 4, 8)})
    return build(recipe, tmp_path_factory.mktemp("batched") / "tiny-random.bundle")


@pytest.fixture
def caller(monkeypatch: pytest.MonkeyPatch) -> Caller:
    return Caller(monkeypatch)
