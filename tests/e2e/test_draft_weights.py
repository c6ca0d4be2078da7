"""Integer weights for the draft alone: a smaller draft, the target as it was, and no other token."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from specexport.build import build
from specexport.errors import RecipeError
from specexport.recipe import Recipe, load_recipe
from specexport.sources.cache import CACHE_VARIABLE
from specruntime.bundle import load_manifest, open_bundle
from specruntime.check import check_bundle
from tests.conftest import RECIPES

INT8 = {"format": "int8", "activations": "blocks", "lm_head": {"format": "int8", "activations": "blocks"}}


def with_draft_weights(kind: str, **keys: object) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((RECIPES / f"tiny-{kind}.yaml").read_text())
    document["draft"]["weights"] = INT8
    return document | keys


def test_only_the_draft_gets_integer_weights_and_every_token_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    plain = build(load_recipe(RECIPES / "tiny-eagle3-tree.yaml"), tmp_path / "plain.bundle")
    small = build(Recipe.model_validate(with_draft_weights("eagle3-tree")), tmp_path / "small.bundle")

    def size(bundle: Path, graph: str) -> int:
        return (bundle / graph / "graph.weights").stat().st_size

    assert size(small, "target") == size(plain, "target")
    assert size(small, "draft") < 0.5 * size(plain, "draft")
    assert load_manifest(small).precision == "fp32"
    with open_bundle(small) as opened:
        report = check_bundle(opened)
    assert [comparison.divergence for comparison in report.comparisons] == [None] * len(report.comparisons)
    assert any((comparison.acceptance_length or 0) > 1 for comparison in report.comparisons)


def test_draft_weights_go_before_the_recipes_own() -> None:
    both = Recipe.model_validate(
        with_draft_weights("eagle3", weights={"format": "int4", "activations": "fine"})
    )
    target, draft = both.weights_of("target"), both.weights_of("draft")
    assert target is not None and draft is not None
    assert (target.format, draft.format) == ("int4", "int8")
    document = with_draft_weights("eagle3", weights={"format": "int4", "activations": "fine"})
    del document["draft"]["weights"]
    inherited = Recipe.model_validate(document)
    assert inherited.weights_of("draft") == inherited.weights == both.weights


def test_draft_weights_need_a_backend_that_takes_them(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    document = with_draft_weights("eagle3", precision="fp16", backend={"kind": "tensorrt_rtx"})
    path.write_text(yaml.safe_dump(document))
    with pytest.raises(
        RecipeError, match=r"draft\.weights: found int8 with this backend, expected .*onnxruntime"
    ):
        load_recipe(path)
