"""Bundles of every kind of draft: tiny random models, one target for all of them."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from specexport.build import build
from specexport.recipe import Recipe, load_recipe
from specruntime.bundle import LoadedBundle, open_bundle
from tests.conftest import RECIPES

CAPACITY = 320
BATCH = (1, 2, 4)
DRAFT_KINDS = ("eagle3", "eagle3-tree", "eagle3-dynamic", "eagle", "medusa", "layer-skip")
Opened: TypeAlias = Callable[[str], LoadedBundle]


def draft_recipe(kind: str) -> Recipe:
    """recipes/tiny-KIND.yaml with room for 256 tokens and more."""
    return load_recipe(RECIPES / f"tiny-{kind}.yaml").model_copy(
        update={"capacity": CAPACITY, "batch": BATCH}
    )


@pytest.fixture(scope="session")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    """The bundle of a kind, built when it is first asked for."""
    bundles: dict[str, LoadedBundle] = {}

    def of(kind: str) -> LoadedBundle:
        if kind not in bundles:
            place: Path = tmp_path_factory.mktemp(kind) / "bundle"
            bundles[kind] = open_bundle(build(draft_recipe(kind), place))
        return bundles[kind]

    yield of
    for bundle in bundles.values():
        bundle.close()
