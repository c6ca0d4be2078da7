from pathlib import Path

import pytest

from specexport.build import build
from specexport.recipe.schema import load_recipe
from tests.conftest import RECIPES


@pytest.fixture(scope="session")
def batched_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """recipes/tiny-random.yaml for one or two sequences. Read it, never write it."""
    recipe = load_recipe(RECIPES / "tiny-random.yaml").model_copy(update={"batch": (1, 2)})
    return build(recipe, tmp_path_factory.mktemp("batched") / "bundle")
