"""Every kind of draft builds from its tiny recipe, and the bundle says what the recipe said."""

import json
from pathlib import Path
from typing import Any

import pytest

from specexport.build import build
from specexport.checkpoints.loading import load_checkpoint
from specexport.context import BuildContext
from specexport.draft_models import draft_target, save_draft
from specexport.draft_models.random_drafts import random_eagle
from specexport.errors import CheckpointUnsupported
from specexport.recipe.schema import Recipe
from specruntime.bundle import load_manifest
from specruntime.drafts import EagleDraft, LayerSkipDraft, MedusaDraft
from specruntime.inspection.summary import render_summary, summarise
from specruntime.manifest.schema import Manifest
from tests.e2e.conftest import DRAFT_KINDS, Built, draft_recipe


@pytest.fixture(scope="module")
def bundles(built: Built) -> dict[str, Path]:
    return {kind: built(kind) for kind in DRAFT_KINDS}


def _changed(kind: str, **draft: object) -> Recipe:
    """The recipe of `bundles` with another draft, so that the builds of one target share its trace."""
    document = draft_recipe(kind).model_dump(mode="json")
    document["draft"] |= draft
    del document["verify_widths"]
    return Recipe.model_validate(document)


def test_manifests_say_what_the_recipes_said(bundles: dict[str, Path]) -> None:
    found: dict[str, Manifest] = {kind: load_manifest(path) for kind, path in bundles.items()}
    for kind, manifest in found.items():
        recipe = draft_recipe(kind)
        assert manifest.draft.kind == recipe.draft.kind
        judged = [p.width for p in manifest.target.profiles if p.name.startswith("verify_")]
        assert tuple(judged) == recipe.verify_widths
        assert manifest.adaptive is None
    chain, tree, dynamic = (found[kind].draft for kind in ("eagle", "eagle3-tree", "eagle3-dynamic"))
    assert isinstance(chain, EagleDraft) and (chain.k, chain.stop_below, chain.tree) == (4, 0.01, None)
    assert isinstance(tree, EagleDraft) and tree.tree is not None and (tree.k, tree.nodes) == (4, 8)
    assert isinstance(dynamic, EagleDraft) and dynamic.dynamic is not None
    assert (dynamic.k, dynamic.dynamic.nodes, dynamic.dynamic.branch) == (3, 7, 3)
    medusa, skip = found["medusa"].draft, found["layer-skip"].draft
    assert isinstance(medusa, MedusaDraft) and (medusa.heads, medusa.k, medusa.nodes) == (3, 3, 8)
    assert isinstance(skip, LayerSkipDraft) and (skip.layers, skip.graph) == ((0, 1, 3), None)


def test_layer_skip_adds_no_weights(bundles: dict[str, Path]) -> None:
    """Its second path reads the target's own weights, packed ones included."""
    weights = {kind: (path / "target" / "graph.weights").stat().st_size for kind, path in bundles.items()}
    assert abs(weights["layer-skip"] - weights["eagle"]) < 64_000  # a layer has 180 KB; packing differs
    assert not (bundles["layer-skip"] / "draft").exists()


def test_build_records_hold_parity_and_times_of_both_graphs(bundles: dict[str, Path]) -> None:
    for kind, path in bundles.items():
        graphs: dict[str, Any] = json.loads((path / "build.json").read_text())["graphs"]
        assert set(graphs) == ({"target"} if kind == "layer-skip" else {"target", "draft"})
        for graph in graphs.values():
            assert graph["parity"]["logit_difference"] < graph["parity"]["tolerance"]
            assert all(ms > 0 for ms in graph["profile_ms"].values())
        if kind == "layer-skip":
            assert graphs["target"]["parity"]["draft_difference"] is not None
        else:
            assert graphs["target"]["parity"]["feature_difference"] is not None
    tree = json.loads((bundles["eagle3-tree"] / "build.json").read_text())["graphs"]["draft"]
    assert tree["parity"]["trees"] is True


def test_a_second_build_changes_nothing(bundles: dict[str, Path]) -> None:
    heard: list[str] = []
    build(draft_recipe("eagle3"), bundles["eagle3"], BuildContext(announce=heard.append))
    assert heard[-1] == "nothing changed"


def test_a_dynamic_length_starts_from_the_measured_times(tmp_path: Path, bundles: dict[str, Path]) -> None:
    for kind in ("eagle3", "medusa", "layer-skip"):
        recipe = _changed(kind, adaptive=True, lookup={"k": 6})
        manifest = load_manifest(build(recipe, tmp_path / f"{kind}.bundle"))
        adaptive = manifest.adaptive
        assert adaptive is not None and adaptive.lookup is not None and adaptive.lookup.k == 6
        assert {"step", "verify_2", "verify_3"} <= adaptive.step_ms.keys()
        assert "draft" not in adaptive.step_ms
        expected = {"eagle3": "extend_2", "medusa": "heads", "layer-skip": "draft"}[kind]
        assert expected in adaptive.draft_ms
        assert not any(name.endswith("_law") for name in adaptive.draft_ms)


def test_a_draft_from_files_builds_and_one_for_another_target_is_refused_before_that_is_traced(
    tmp_path: Path, bundles: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = _changed("eagle3")
    loaded = load_checkpoint(recipe.target, "fp32")
    target = draft_target(loaded.model, name=loaded.name, vocab_size=loaded.vocab_size)
    draft = random_eagle("eagle3", target, seed=5, draft_vocab_size=64)
    save_draft(draft, tmp_path / "draft")
    mine = _changed("eagle3", source=str(tmp_path / "draft"))
    manifest = load_manifest(build(mine, tmp_path / "mine.bundle"))
    assert manifest.draft.kind == "eagle3"

    monkeypatch.setattr("specexport.graph.stages.export_canonical", None)
    document = mine.model_dump(mode="json")
    document["target"]["source"]["random"]["seed"] = 7  # the same sizes, other embeddings
    with pytest.raises(CheckpointUnsupported, match=r"target_embeddings_sha256 is .* hash to"):
        build(Recipe.model_validate(document), tmp_path / "other.bundle")
    document["target"]["source"]["random"]["sizes"]["hidden_size"] = 32
    with pytest.raises(CheckpointUnsupported, match="target_hidden_size is 64, expected 32"):
        build(Recipe.model_validate(document), tmp_path / "other.bundle")
    assert not (tmp_path / "other.bundle").exists()


def test_what_a_draft_cannot_do_is_refused_with_both_sides(tmp_path: Path, bundles: dict[str, Path]) -> None:
    cases = [
        (_changed("medusa", tree=None, k=5), "draft.k: found 5, expected at most 3, the heads of"),
        (
            _changed("layer-skip", layers=[0, 9]),
            r"^draft.layers: found 2 layers up to 9, .* 0 to 3, the layers of",
        ),
        (
            _changed("layer-skip", layers=None, exit_after=4),
            "^draft.exit_after: found 4, expected at most 3: random",
        ),
    ]
    for recipe, words in cases:
        with pytest.raises(CheckpointUnsupported, match=words):
            build(recipe, tmp_path / "refused.bundle")
        assert not (tmp_path / "refused.bundle").exists()


def test_a_build_says_what_the_drafts_layer_ids_are_taken_to_mean_and_inspect_why(tmp_path: Path) -> None:
    recipe = draft_recipe("eagle3")
    target = load_checkpoint(recipe.target, "fp32")
    side = draft_target(target.model, name="tiny", vocab_size=target.vocab_size)
    place = tmp_path / "draft"
    save_draft(random_eagle("eagle3", side, seed=1, draft_vocab_size=100), place)
    config = json.loads((place / "config.json").read_text())
    config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [0, 1, 3]}
    (place / "config.json").write_text(json.dumps(config))
    heard: list[str] = []
    build(_changed("eagle3", source=str(place)), tmp_path / "bundle", BuildContext(announce=heard.append))
    assert any("warning" in line and "draft.layer_ids: {leaving: [0, 1, 3]}" in line for line in heard)
    assert (
        "on what enters layers 0, 1, 3 of the target (config.json's [0, 1, 3], taken to be entering)"
        in _inspected(tmp_path / "bundle")
    )
    heard.clear()
    stated = _changed("eagle3", source=str(place), layer_ids={"leaving": [0, 1, 3]})
    build(stated, tmp_path / "bundle", BuildContext(announce=heard.append))
    assert not any("warning" in line for line in heard)
    assert (
        "on what enters layers 1, 2, 4 of the target (the recipe: what is leaving layers 0, 1 and 3)"
        in _inspected(tmp_path / "bundle")
    )


def _inspected(bundle: Path) -> str:
    return render_summary(summarise(load_manifest(bundle), bundle))
