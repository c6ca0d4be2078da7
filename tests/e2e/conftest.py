"""Bundles of every kind of draft: tiny random models, one target for all of them. The runtime's wheel."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from specexport.build import build
from specexport.recipe.schema import Recipe, load_recipe
from specruntime.bundle import LoadedBundle, open_bundle
from tests.conftest import RECIPES, REPOSITORY
from tests.e2e.environments import build_wheel
from tests.made_once import made_once

CAPACITY = 320
BATCH = (1, 2, 4)
DRAFT_KINDS = ("eagle3", "eagle3-tree", "eagle3-dynamic", "eagle", "medusa", "layer-skip")
Built: TypeAlias = Callable[[str], Path]
Opened: TypeAlias = Callable[[str], LoadedBundle]


def draft_recipe(kind: str) -> Recipe:
    """recipes/tiny-KIND.yaml with room for 256 tokens and more."""
    return load_recipe(RECIPES / f"tiny-{kind}.yaml").model_copy(
        update={"capacity": CAPACITY, "batch": BATCH}
    )


@pytest.fixture(scope="session")
def runtime_wheel(run_directory: Path) -> Path:
    """The wheel of the runtime, built by the worker that first asks for it."""
    project = REPOSITORY / "runtime"
    (wheel,) = made_once(run_directory / "wheel", lambda place: build_wheel(project, place)).glob("*.whl")
    return wheel


@pytest.fixture(scope="session")
def built(run_directory: Path) -> Built:
    """The bundle of a kind, built when one of this run's workers first asks for it. Read it, never write it."""
    return lambda kind: made_once(
        run_directory / f"tiny-{kind}.bundle", lambda place: build(draft_recipe(kind), place)
    )


@pytest.fixture(scope="session")
def opened(built: Built) -> Iterator[Opened]:
    """The bundle of a kind, opened when it is first asked for."""
    bundles: dict[str, LoadedBundle] = {}

    def of(kind: str) -> LoadedBundle:
        if kind not in bundles:
            bundles[kind] = open_bundle(built(kind))
        return bundles[kind]

    yield of
    for bundle in bundles.values():
        bundle.close()
