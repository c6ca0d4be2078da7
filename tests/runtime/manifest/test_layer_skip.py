"""A target that drafts with some of its layers: what its manifest must say of both paths."""

from pathlib import Path

import pytest

from specruntime.drafts import LayerSkipDraft
from tests.runtime.manifest.bundle_documents import graph, sound_document
from tests.runtime.manifest.draft_documents import Case, layer_skip, read, require_refused, tensor


def test_a_copy_of_some_layers_is_read_like_a_model(tmp_path: Path) -> None:
    document = layer_skip(graph=graph("draft.onnx", 64) | {"layers": 1})
    document["draft"]["graph"]["aliases"] = document["draft"]["graph"]["aliases"][:2]
    for key in ("inputs", "outputs"):
        document["draft"]["graph"][key] = document["draft"]["graph"][key][:4]
    document["files"]["draft.onnx"] = sound_document()["files"]["draft.onnx"]
    draft = read(tmp_path, document)
    assert isinstance(draft, LayerSkipDraft) and draft.own_graph is draft.graph


CONTRADICTORY: dict[str, Case] = {
    "layers out of order": (
        lambda: layer_skip(layers=[1, 0]),
        lambda d: None,
        ["draft.layers is [1, 0], expected ascending layers, each once"],
    ),
    "a layer the target has not": (
        lambda: layer_skip(layers=[2]),
        lambda d: None,
        ["draft.layers has 2, but the target has layers 0 to 1"],
    ),
    "all layers kept": (
        lambda: layer_skip(layers=[0, 1]),
        lambda d: None,
        ["draft.layers has all 2 layers of the target, expected fewer"],
    ),
    "a copy of another number of layers": (
        lambda: (
            sound_document()
            | {"draft": {"kind": "layer_skip", "k": 3, "layers": [0], "graph": graph("draft.onnx", 64)}}
        ),
        lambda d: None,
        ["draft.graph has 2 layers, but draft.layers names 1"],
    ),
    "no profile of the kept layers": (
        layer_skip,
        lambda d: d["target"]["profiles"].pop(),
        ["target has no profile 'draft', which this draft runs"],
    ),
    "kept layers without ids": (
        layer_skip,
        lambda d: d["target"]["profiles"][3]["outputs"].remove("draft_top_ids"),
        ["the target's profile 'draft' does not compute 'draft_top_ids'"],
    ),
    "kept layers of two rows": (
        layer_skip,
        lambda d: d["target"]["profiles"][3].update(width=2),
        ["target: profile 'draft' is 2 wide with 1 rows, expected 1 and 1"],
    ),
    "a cache written by both paths": (
        layer_skip,
        lambda d: d["target"]["profiles"][3]["outputs"].append("present_key.1"),
        ["target: profile 'draft' writes 'past_key.1' twice"],
    ),
    "both paths in a profile of all outputs": (
        layer_skip,
        lambda d: d["target"]["profiles"][0].pop("outputs"),
        ["target: profile 'step' writes 'past_key.1' twice"],
    ),
    "a second path's cache that is not an alias": (
        layer_skip,
        lambda d: d["target"]["aliases"].pop(),
        ["target.aliases has 5 pairs, expected 6 for 2 layers"],
    ),
    "a second path's cache of another shape": (
        layer_skip,
        lambda d: d["target"]["outputs"][-1].update(shape=["B", 2, 64, 16]),
        ["past_value.1 and draft_present_value.1 are one buffer, but their shapes differ"],
    ),
    "a second path in a draft's graph": (
        sound_document,
        lambda d: d["draft"]["graph"]["outputs"].append(tensor("draft_top_ids", "int64", "B", "R")),
        ["draft.outputs names 'draft_top_ids', expected logits, top_ids or a cache"],
    ),
    "no profile that judges width 1": (
        layer_skip,
        lambda d: d["target"]["profiles"].pop(0),
        ["target has no profile of width 1"],
    ),
}


@pytest.mark.parametrize("name", CONTRADICTORY)
def test_kept_layers_that_contradict_the_target_are_refused(tmp_path: Path, name: str) -> None:
    require_refused(tmp_path, CONTRADICTORY[name])
