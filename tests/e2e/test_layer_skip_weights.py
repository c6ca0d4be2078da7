"""Layer skip over integer weights: both paths read one copy of them, and drafts change no token."""

from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest
import yaml

from specexport.build import build
from specexport.errors import RecipeError
from specexport.graph.files import GRAPH_NAME, PATH_NAME, WEIGHTS_NAME
from specexport.recipe.schema import Recipe, load_recipe
from specruntime.bundle import load_manifest, open_bundle
from specruntime.check import check_bundle
from specruntime.drafts import LayerSkipDraft
from tests.conftest import RECIPES

INT8: dict[str, Any] = {"format": "int8"}
WEIGHTS = {
    "int8": INT8,
    "int8 by rows": {"format": "int8", "activations": "rows"},
    "int4": {"format": "int4"},
    "fp32 head": {"format": "int8", "lm_head": {"format": "fp32"}},
}
LAYERS: dict[str, dict[str, Any]] = {"early exit": {"exit_after": 1}, "skipped layer": {"layers": [0, 1, 3]}}


def document(weights: dict[str, Any] | None, layers: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((RECIPES / "tiny-layer-skip.yaml").read_text())
    found["draft"] = {"kind": "layer_skip", "k": 3, **layers}
    return found if weights is None else found | {"weights": weights}


def stored(bundle: Path, name: str) -> set[tuple[int | None, int | None]]:
    """Where the weights of a graph lie in the weights file."""
    held = [value.const_value for value in ir.load(bundle / "target" / name).graph.initializers.values()]
    return {(tensor.offset, tensor.length) for tensor in held if isinstance(tensor, ir.ExternalTensor)}


def products(bundle: Path, name: str) -> tuple[int, int]:
    """Products with integer weights, and all with constant weights."""
    nodes = list(ir.load(bundle / "target" / name).graph)
    integer = sum(node.op_type == "MatMulNBits" for node in nodes)
    return integer, integer + sum(
        node.op_type in ("MatMul", "FusedMatMul")
        and node.inputs[1] is not None
        and node.inputs[1].is_initializer()
        for node in nodes
    )


@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize("weights", WEIGHTS)
def test_drafts_over_integer_weights_change_no_token(weights: str, layers: str, tmp_path: Path) -> None:
    recipe = Recipe.model_validate(document(WEIGHTS[weights], LAYERS[layers]))
    bundle = build(recipe, tmp_path / "bundle")
    manifest = load_manifest(bundle)
    assert isinstance(manifest.draft, LayerSkipDraft) and manifest.precision == recipe.shown_precision
    with open_bundle(bundle) as opened:
        report = check_bundle(opened)
    assert [comparison.divergence for comparison in report.comparisons] == [None] * len(report.comparisons)
    assert any((comparison.acceptance_length or 0) > 1.05 for comparison in report.comparisons)


def test_both_paths_read_one_copy_of_the_integer_weights(tmp_path: Path) -> None:
    layers = LAYERS["skipped layer"]
    plain = build(Recipe.model_validate(document(None, layers)), tmp_path / "plain.bundle")
    small = build(Recipe.model_validate(document(INT8, layers)), tmp_path / "small.bundle")
    assert stored(small, PATH_NAME) and stored(small, PATH_NAME) <= stored(small, GRAPH_NAME)
    for name in (GRAPH_NAME, PATH_NAME):
        integer, every = products(small, name)
        assert integer == every > 0 == products(plain, name)[0]
    sizes = [(bundle / "target" / WEIGHTS_NAME).stat().st_size for bundle in (small, plain)]
    assert sizes[0] < 0.4 * sizes[1]


def test_the_draft_has_no_weights_of_its_own_to_state(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    stated = document(None, LAYERS["early exit"])
    stated["draft"]["weights"] = INT8
    path.write_text(yaml.safe_dump(stated))
    with pytest.raises(RecipeError, match=r"draft\.weights: unknown key"):
        load_recipe(path)
