"""Bundles with integer weights, a 4-bit head and an int8 cache over the operators of `specruntime_kernels`: every
answer with drafts equals plain decoding, without the excuses of the plain graph.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from specexport.build import build
from specexport.recipe.schema import Recipe
from specruntime.bundle import open_bundle
from specruntime.check import check_bundle
from specruntime.engines import EngineOptions
from specruntime.engines.kernels import VARIABLE
from specruntime.manifest.schema import window_of
from tests.conftest import RECIPES

pytest.importorskip("specruntime_kernels", reason="specruntime-kernels is not installed")

INTEGERS = {"format": "int4", "activations": "blocks", "block": 16, "lm_head": {"format": "int4"}}
TEXT = {"text": "the quick brown fox jumps over the lazy dog, and so on and so on", "tokens": 48}


def recipe(kind: str, **changes: Any) -> Recipe:
    document = yaml.safe_load((RECIPES / f"tiny-{kind}.yaml").read_text())
    return Recipe.model_validate({**document, **changes})


@pytest.mark.parametrize("kind", ["eagle3-tree", "layer-skip"])
def test_drafts_change_no_token_in_four_bits_with_an_int8_cache(
    cache: Path, tmp_path: Path, kind: str
) -> None:
    bundle = build(recipe(kind, weights=INTEGERS, cache="int8", fidelity=TEXT), tmp_path / "b.bundle")
    record = json.loads((bundle / "build.json").read_text())["graphs"]["target"]
    assert record["window"]["fidelity"] is not None and record["window"]["fidelity"] != record["fidelity"]
    assert record["window"]["parity"]["logit_difference"] < 1e-3
    with open_bundle(bundle) as opened:
        window = window_of(opened.manifest.target)
        assert window is not None and (window.cache, window.exact) == ("int8", True)
        assert opened.rows_are_exact
        report = check_bundle(opened)
        assert report.passed and {found.against for found in report.comparisons} == {"plain"}
        assert all(found.divergence is None for found in report.comparisons)
    with open_bundle(bundle, options=EngineOptions(kernels="off")) as opened:
        assert opened.kernels is None and not opened.rows_are_exact
        assert any("width" in found.against for found in check_bundle(opened).comparisons)


def test_a_host_without_the_operators_writes_the_graph_and_says_what_it_did_not_compare(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "off")
    bundle = build(recipe("random"), tmp_path / "b.bundle")
    for graph in json.loads((bundle / "build.json").read_text())["graphs"].values():
        assert graph["window"]["parity"] is None and "turned off" in graph["window"]["not_compared"]
    monkeypatch.delenv(VARIABLE)
    with open_bundle(bundle) as opened:
        assert opened.kernels is not None


def test_a_recipe_without_them_makes_the_bundle_it_always_made(cache: Path, tmp_path: Path) -> None:
    backend = {"kind": "onnxruntime", "threads": 1, "kernels": False}
    bundle = build(recipe("random", backend=backend), tmp_path / "b.bundle")
    assert not [path for path in bundle.rglob("*") if "window" in path.name]
    assert "window" not in (bundle / "manifest.json").read_text() + (bundle / "build.json").read_text()
