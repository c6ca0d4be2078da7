"""The graphs of every kind of draft compile with TensorRT-RTX, on a machine without a GPU."""

import json
from pathlib import Path

import pytest
import yaml

from specexport.build import build
from specexport.cache.entries import CACHE_VARIABLE
from specexport.context import BuildContext
from specexport.recipe.schema import Recipe
from specruntime.bundle import load_manifest
from specruntime.manifest.tensorrt import TensorRTEngine
from tests.conftest import RECIPES

pytest.importorskip("tensorrt_rtx")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.mark.parametrize("kind", ["medusa", "eagle3-tree", "layer-skip"])
def test_a_draft_has_an_engine_of_its_own(
    kind: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(cache))
    document = yaml.safe_load((RECIPES / f"tiny-{kind}.yaml").read_text())
    document |= {"precision": "fp16", "backend": {"kind": "tensorrt_rtx"}}
    document["parity"]["tolerance"] = 0.2
    heard: list[str] = []
    root = build(Recipe.model_validate(document), tmp_path / "it.bundle", BuildContext(announce=heard.append))
    manifest = load_manifest(root)
    graph = manifest.draft.own_graph
    assert graph is not None and isinstance(graph.engine, TensorRTEngine)
    assert all(profile.outputs is None for profile in (*graph.profiles, *manifest.target.profiles))
    record = json.loads((root / "build.json").read_text())["graphs"]["draft"]
    assert record["parity"]["logit_difference"] < 0.2
    if kind == "layer-skip":
        assert graph.layers == 3
        assert "the draft engine holds its own copy of 3 of the target's layers" in heard
