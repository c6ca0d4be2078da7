"""Recipes whose bundles hold packed weights."""

from typing import Any

import yaml

from specexport.recipe.schema import Recipe
from tests.conftest import RECIPES


def recipe_of(kind: str, **backend: object) -> Recipe:
    document: dict[str, Any] = yaml.safe_load((RECIPES / f"tiny-{kind}.yaml").read_text())
    document["backend"] = {**document["backend"], "prepacked": True, "kernels": False, **backend}
    return Recipe.model_validate(document)
