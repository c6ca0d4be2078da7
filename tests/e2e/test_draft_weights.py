"""Integer weights for the draft alone: a smaller draft, the target as it was, and no other token."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml

from specexport.build import build
from specexport.errors import RecipeError
from specexport.recipe.schema import Recipe, load_recipe
from specruntime.bundle import load_manifest, open_bundle
from specruntime.check import check_bundle
from specruntime.engines import EngineOptions, open_engine
from specruntime.engines.onnxruntime import file_mappings
from specruntime.errors import BundleInvalid
from specruntime.inspection.summary import kernels_here, weight_bytes
from tests.conftest import RECIPES

INT8 = {"format": "int8", "activations": "blocks", "lm_head": {"format": "int8", "activations": "blocks"}}


def with_draft_weights(kind: str, **keys: object) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((RECIPES / f"tiny-{kind}.yaml").read_text())
    document["draft"]["weights"] = INT8
    return document | keys


def test_only_the_draft_gets_integer_weights_and_every_token_stays(tmp_path: Path) -> None:
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


EQUAL = {
    "fp32": {},
    "fp16": {"precision": "fp16", "parity": {"tolerance": 0.3, "tokens": 48}},
    "int8": {"weights": INT8},
    "packed": {"backend": {"kind": "onnxruntime", "provider": "cpu", "threads": 1, "prepacked": True}},
}


@pytest.mark.parametrize("form", EQUAL)
@pytest.mark.parametrize("kind", ["eagle3", "eagle"])
def test_what_draft_and_target_have_in_common_is_in_the_bundle_once(
    kind: str, form: str, tmp_path: Path
) -> None:
    document = yaml.safe_load((RECIPES / f"tiny-{kind}.yaml").read_text()) | EQUAL[form]
    bundle = build(Recipe.model_validate(document), tmp_path / "it.bundle")
    weights = {name: (bundle / name / "graph.weights").read_bytes() for name in ("target", "draft")}
    own, shared = _tables(bundle)
    assert shared, "the embedding table at least"
    for offset, length in own:
        assert length < 4096 or weights["draft"][offset : offset + length] not in weights["target"]
    graph = load_manifest(bundle).draft.own_graph
    assert graph is not None
    assert (graph.file, graph.weights) == ("draft.onnx", ("draft/graph.weights", "target/graph.weights"))
    if form != "packed":
        expected = len(weights["draft"]) + (bundle / "draft.onnx").stat().st_size
        assert weight_bytes(load_manifest(bundle), graph) == expected
    with open_bundle(bundle) as opened:
        report = check_bundle(opened)
    assert report.passed
    assert any((comparison.acceptance_length or 0) >= 1 for comparison in report.comparisons)


def test_both_engines_map_the_shared_file_and_copies_read_it_too(tmp_path: Path) -> None:
    bundle = build(load_recipe(RECIPES / "tiny-eagle3.yaml"), tmp_path / "it.bundle")
    graph = load_manifest(bundle).draft.own_graph
    assert graph is not None
    found = {}
    for copied in (False, True):
        engine = open_engine(graph, bundle, EngineOptions(copy_weights=copied))
        if sys.platform == "linux":
            mapped = {
                mapping.path for mapping in file_mappings() if mapping.path.startswith(str(bundle.resolve()))
            }
            own = "graph.weights" if kernels_here(graph)[0] is None else "window.weights"
            assert (str(bundle.resolve() / "target" / own) in mapped) is not copied
        context = engine.new_context()
        window = context.window("step")
        window.input_ids[:], window.logits_rows[:], window.position_ids[:] = 7, 0, 0
        assert window.hidden is not None and window.topk_logprobs is not None
        window.hidden[:] = 0.5
        context.run(window)
        found[copied] = window.topk_logprobs.copy()
        context.close()
        engine.close()
    assert np.array_equal(found[False], found[True])
    assert np.isfinite(found[True]).all()


def test_weight_files_outside_a_graphs_directory_are_refused(tmp_path: Path) -> None:
    bundle = build(load_recipe(RECIPES / "tiny-eagle3.yaml"), tmp_path / "it.bundle")
    document = json.loads((bundle / "manifest.json").read_text())
    document["target"]["weights"] = ["draft/graph.weights"]
    (bundle / "manifest.json").write_text(json.dumps(document))
    with pytest.raises(
        BundleInvalid, match=r"target\.weights: found 'draft/graph.weights', expected files in the dir"
    ):
        load_manifest(bundle)


def _tables(bundle: Path) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Offset and length of the draft's weights in its own file, and in the target's."""
    own: list[tuple[int, int]] = []
    shared: list[tuple[int, int]] = []
    for tensor in onnx.load(bundle / "draft.onnx", load_external_data=False).graph.initializer:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        if entries:
            place = own if entries["location"] == "draft/graph.weights" else shared
            place.append((int(entries["offset"]), int(entries["length"])))
    return own, shared
