"""How many files of the project a build of a small recipe goes through: the bound may only fall."""

import sys
from pathlib import Path
from types import FrameType
from typing import Any

from specexport.build import build
from specexport.recipe.schema import load_recipe
from tests.conftest import RECIPES, REPOSITORY

BUILD_SIDE = 41
"""Of `specexport`, with a checkpoint to load, two graphs to trace and lower, and nothing in the cache.
Six files of them serve the graphs over the operators of `specruntime_kernels` alone."""


def visited(output: Path) -> set[str]:
    """The files whose functions run, what runs while a module is imported left out."""
    found: set[str] = set()
    importing = 0

    def note(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal importing
        if frame.f_code.co_name == "<module>":
            importing += {"call": 1, "return": -1}.get(event, 0)
        elif event == "call" and not importing:
            found.add(frame.f_code.co_filename)

    recipe = load_recipe(RECIPES / "tiny-random.yaml")
    sys.setprofile(note)
    try:
        build(recipe, output)
    finally:
        sys.setprofile(None)
    return {str(Path(name).relative_to(REPOSITORY)) for name in found if name.startswith(f"{REPOSITORY}/")}


def test_a_build_goes_through_few_files(cache: Path, tmp_path: Path) -> None:
    names = sorted(name for name in visited(tmp_path / "tiny.bundle") if name.startswith("specexport/"))
    assert len(names) <= BUILD_SIDE, f"{len(names)} files: {', '.join(names)}"
