"""Each kind of draft is read from a manifest, and each way it can contradict its target has its own answer."""

from collections.abc import Callable
from pathlib import Path

import pytest

from specruntime.bundle import load_manifest
from specruntime.manifest import EagleDraft, LayerSkipDraft, MedusaDraft, TreeSpec, draft_graph
from tests.runtime.test_bundle import Document, graph, refusal, sound_document, write_bundle

F = 24
TREE = {"parents": [0, 0, 1], "ranks": [0, 1, 0]}


def tensor(name: str, dtype: str, *shape: object) -> Document:
    return {"name": name, "dtype": dtype, "shape": list(shape)}


def target(*, features: bool = False) -> Document:
    """A target that judges trees."""
    document = graph("target.onnx", 64)
    document["inputs"] += [
        tensor("position_ids", "int64", "B", "W"),
        tensor("window_mask", "bool", "B", "W", "W"),
    ]
    if features:
        document["outputs"].append(tensor("features", "float32", "B", "W", F))
    return document


def eagle_graph() -> Document:
    document = graph("draft.onnx", 64)
    document["inputs"].append(tensor("hidden", "float32", "B", "W", F))
    document["outputs"][:2] = [
        tensor("topk_ids", "int64", "B", "R", 6),
        tensor("topk_logprobs", "float32", "B", "R", 6),
        tensor("next_hidden", "float32", "B", "W", F),
        tensor("logits", "float32", "B", "R", 128),
    ]
    lean = ["topk_ids", "topk_logprobs", "next_hidden", *(pair["output"] for pair in document["aliases"])]
    document["profiles"] = [
        {"name": "step", "width": 1, "rows": 1, "outputs": lean},
        {"name": "step_law", "width": 1, "rows": 1},
        {"name": "prefill_16", "width": 16, "rows": 1, "outputs": lean},
    ]
    return document


def medusa_graph() -> Document:
    return graph("draft.onnx", 64) | {
        "inputs": [tensor("hidden", "float32", "B", "W", F)],
        "outputs": [
            tensor("topk_ids", "int64", "B", "R", 3, 5),
            tensor("topk_logprobs", "float32", "B", "R", 3, 5),
        ],
        "aliases": [],
        "layers": 0,
        "profiles": [{"name": "heads", "width": 1, "rows": 1}],
    }


def self_drafting_target() -> Document:
    """A target whose profile `draft` runs layer 0 alone, which it shares, and layer 1 of the second path."""
    document = graph("target.onnx", 64)
    whole = [output["name"] for output in document["outputs"]]
    cache = {"dtype": "float32", "shape": ["B", 2, 64, 8]}
    second = ["draft_present_key.1", "draft_present_value.1"]
    document["outputs"] += [
        tensor("draft_logits", "float32", "B", "R", 128),
        tensor("draft_top_ids", "int64", "B", "R"),
        *({"name": name, **cache} for name in second),
    ]
    document["aliases"] += [
        {"input": name.replace("draft_present", "past"), "output": name} for name in second
    ]
    shared = ["present_key.0", "present_value.0"]
    document["profiles"] = [{**profile, "outputs": whole} for profile in document["profiles"]]
    document["profiles"].append(
        {
            "name": "draft",
            "width": 1,
            "rows": 1,
            "outputs": ["draft_logits", "draft_top_ids", *shared, *second],
        }
    )
    return document


def eagle(**changes: object) -> Document:
    draft = {"kind": "eagle3", "k": 2, "tree": dict(TREE), "graph": eagle_graph()} | changes
    return sound_document() | {"target": target(features=True), "draft": draft}


def medusa() -> Document:
    draft = {"kind": "medusa", "heads": 3, "tree": dict(TREE), "graph": medusa_graph()}
    return sound_document() | {"target": target(features=True), "draft": draft}


def layer_skip(**changes: object) -> Document:
    document = sound_document() | {
        "target": self_drafting_target(),
        "draft": {"kind": "layer_skip", "k": 3, "layers": [1]} | changes,
    }
    document["files"].pop("draft.onnx")
    return document


def read(root: Path, document: Document) -> object:
    write_bundle(root, document)
    if "draft.onnx" not in document["files"]:
        (root / "draft.onnx").unlink()
    return load_manifest(root).draft


def test_every_kind_is_read(tmp_path: Path) -> None:
    chain = read(tmp_path, eagle(kind="eagle", k=3, tree=None, stop_below=0.25))
    assert isinstance(chain, EagleDraft) and (chain.k, chain.nodes, chain.stop_below) == (3, 3, 0.25)
    static = read(tmp_path, eagle())
    assert isinstance(static, EagleDraft) and static.tree is not None
    assert static.tree.depths == (1, 1, 2) and static.nodes == 3 and draft_graph(static) is static.graph
    dynamic = read(tmp_path, eagle(tree=None, dynamic={"nodes": 3, "branch": 2}))
    assert isinstance(dynamic, EagleDraft) and dynamic.nodes == 3
    heads = read(tmp_path, medusa())
    assert isinstance(heads, MedusaDraft) and (heads.k, heads.nodes) == (2, 3)
    itself = read(tmp_path, layer_skip())
    assert isinstance(itself, LayerSkipDraft) and draft_graph(itself) is None
    assert itself.k == itself.nodes == 3


def test_a_copy_of_some_layers_is_read_like_a_model(tmp_path: Path) -> None:
    document = layer_skip(graph=graph("draft.onnx", 64) | {"layers": 1})
    document["draft"]["graph"]["aliases"] = document["draft"]["graph"]["aliases"][:2]
    for key in ("inputs", "outputs"):
        document["draft"]["graph"][key] = document["draft"]["graph"][key][:4]
    document["files"]["draft.onnx"] = sound_document()["files"]["draft.onnx"]
    draft = read(tmp_path, document)
    assert isinstance(draft, LayerSkipDraft) and draft_graph(draft) is draft.graph


def test_depths_follow_the_parents() -> None:
    assert TreeSpec(parents=(0, 1, 2, 0, 4), ranks=(0, 0, 0, 1, 0)).depths == (1, 2, 3, 1, 2)


def _topk(document: Document, *sizes: int) -> None:
    document["draft"]["graph"]["outputs"][0]["shape"][2:] = sizes


def _drop(document: Document, key: str, name: str) -> None:
    document["target"][key] = [tensor for tensor in document["target"][key] if tensor["name"] != name]


def _profile(document: Document, name: str) -> Document:
    graphs = (document["draft"].get("graph", {"profiles": []}), document["target"])
    return next(profile for graph in graphs for profile in graph["profiles"] if profile["name"] == name)


def _tensorrt(document: Document) -> None:
    graph = document["draft"]["graph"]
    names = [profile["name"] for profile in graph["profiles"]]
    engine = {"kind": "tensorrt", "version": "10.15", "optimization_profiles": dict.fromkeys(names, 0)}
    graph["engine"] = engine


CONTRADICTORY: dict[str, tuple[Callable[[], Document], Callable[[Document], object], list[str]]] = {
    "a parent after its child": (
        eagle,
        lambda d: d["draft"]["tree"].update(parents=[0, 2, 1]),
        ["draft.tree: node 1, window row 2, has parent row 2, expected an earlier"],
    ),
    "more ranks than parents": (
        medusa,
        lambda d: d["draft"]["tree"].update(ranks=[0, 1, 0, 0]),
        ["draft.tree has 3 parents and 4 ranks"],
    ),
    "two children of one rank": (
        eagle,
        lambda d: d["draft"]["tree"].update(ranks=[0, 0, 0]),
        ["draft.tree: row 0 has two children of rank 0, expected each rank once"],
    ),
    "a rank beyond the candidates": (
        eagle,
        lambda d: d["draft"]["tree"].update(ranks=[0, 6, 0]),
        ["draft.tree: node 1 has rank 6, but the draft's graph names 6 candidates"],
    ),
    "a tree wider than the windows": (
        eagle,
        lambda d: d["draft"]["tree"].update(parents=[0, 0, 1, 1], ranks=[0, 1, 0, 1]),
        ["the number of nodes of draft.tree is 4", "judges 4 rows", "5 are needed"],
    ),
    "a dynamic tree wider than the windows": (
        lambda: eagle(tree=None, dynamic={"nodes": 9, "branch": 2}),
        lambda d: None,
        ["draft.dynamic.nodes is 9", "judges 4 rows", "10 are needed"],
    ),
    "a dynamic tree of fewer nodes than levels": (
        lambda: eagle(tree=None, k=3, dynamic={"nodes": 2, "branch": 2}),
        lambda d: None,
        ["draft.dynamic.nodes is 2, too few for a depth of 3"],
    ),
    "a branch beyond the candidates": (
        lambda: eagle(tree=None, dynamic={"nodes": 3, "branch": 7}),
        lambda d: None,
        ["draft.dynamic.branch is 7, but its graph names 6 candidates"],
    ),
    "k beside a tree of another depth": (
        eagle,
        lambda d: d["draft"].update(k=3),
        ["draft.k is 3, but draft.tree is 2 deep"],
    ),
    "both kinds of tree": (
        eagle,
        lambda d: d["draft"].update(dynamic={"nodes": 3, "branch": 2}),
        ["both a tree and a dynamic tree"],
    ),
    "a confidence stop of a tree": (
        eagle,
        lambda d: d["draft"].update(stop_below=0.5),
        ["draft.stop_below is 0.5 beside a tree"],
    ),
    "a confidence stop inside one launch": (
        sound_document,
        lambda d: (
            d["draft"].update(fused=True, stop_below=0.5),
            d["draft"]["graph"]["outputs"][0].update(shape=["B", 3]),
            d["draft"]["graph"]["outputs"][1].update(shape=["B", 1, 128]),
            d["draft"]["graph"]["profiles"].pop(1),
        ),
        ["draft.stop_below is 0.5 for a fused draft"],
    ),
    "a tree for a target without a mask": (
        eagle,
        lambda d: _drop(d, "inputs", "window_mask"),
        ["draft has a tree, but the target has no input 'window_mask'"],
    ),
    "a dynamic tree for a target without positions": (
        lambda: eagle(tree=None, dynamic={"nodes": 3, "branch": 2}),
        lambda d: _drop(d, "inputs", "position_ids"),
        ["draft has a tree, but the target has no input 'position_ids'"],
    ),
    "a target that tells nothing": (
        eagle,
        lambda d: _drop(d, "outputs", "features"),
        ["draft.graph takes hidden, but target.outputs has no 'features'"],
    ),
    "features of another size": (
        medusa,
        lambda d: d["draft"]["graph"]["inputs"][0].update(shape=["B", "W", 32]),
        ["target gives features of 24, but draft.graph takes hidden of 32"],
    ),
    "a profile that leaves the features out": (
        eagle,
        lambda d: d["target"]["profiles"][1].update(
            outputs=[output["name"] for output in d["target"]["outputs"] if output["name"] != "features"]
        ),
        ["target: profile 'verify_4' does not compute the features"],
    ),
    "a step that takes another size than it gives": (
        eagle,
        lambda d: d["draft"]["graph"]["outputs"][2].update(shape=["B", "W", 32]),
        ["draft.graph takes hidden of 24 and gives next_hidden of 32"],
    ),
    "as many candidates as log-probabilities": (
        eagle,
        lambda d: _topk(d, 5),
        ["topk_ids has [5] candidates, topk_logprobs [6]"],
    ),
    "candidates of no fixed number": (
        eagle,
        lambda d: d["draft"]["graph"]["outputs"][0].update(shape=["B", "R", "W"]),
        ["draft.outputs: topk_ids has shape ['B', 'R', 'W'], expected ['B', 'R', 'any size']"],
    ),
    "no hidden input": (
        eagle,
        lambda d: d["draft"]["graph"]["inputs"].pop(),
        ["draft.inputs has no 'hidden'"],
    ),
    "no candidates": (
        medusa,
        lambda d: d["draft"]["graph"]["outputs"].pop(0),
        ["draft.outputs has no 'topk_ids'"],
    ),
    "a chain of steps without a step": (
        lambda: eagle(tree=None),
        lambda d: d["draft"]["graph"]["profiles"].pop(0),
        ["draft.graph has no profile 'step', which this draft runs"],
    ),
    "a step of two rows": (
        lambda: eagle(tree=None),
        lambda d: (
            _profile(d, "step_law").update(name="odd") or d["draft"]["graph"]["profiles"][0].update(width=2)
        ),
        ["draft.graph: profile 'step' is 2 wide with 1 rows, expected 1 and 1"],
    ),
    "more heads than the graph has": (
        medusa,
        lambda d: d["draft"].update(heads=4),
        ["draft.heads is 4, but topk_ids of its graph has 3"],
    ),
    "a tree deeper than the heads": (
        medusa,
        lambda d: (
            d["draft"].update(heads=1),
            [output["shape"].__setitem__(2, 1) for output in d["draft"]["graph"]["outputs"]],
        ),
        ["draft.tree is 2 deep, but there are 1 heads"],
    ),
    "heads without their profile": (
        medusa,
        lambda d: d["draft"]["graph"]["profiles"][0].update(name="step"),
        ["draft.graph has no profile 'heads'"],
    ),
    "a cache of heads": (
        medusa,
        lambda d: d["draft"]["graph"].update(layers=1),
        ["draft.inputs has 0 tensors named past_*, expected 2 for 1 layers"],
    ),
    "a target of no layers": (
        sound_document,
        lambda d: d["target"].update(layers=0),
        ["target.layers is 0, expected at least 1"],
    ),
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
    "a second path's cache that is no alias": (
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
    "an output a profile cannot compute": (
        eagle,
        lambda d: _profile(d, "step")["outputs"].append("top_ids"),
        ["draft: profile 'step' computes 'top_ids', which is not an output of the graph"],
    ),
    "an output computed twice": (
        eagle,
        lambda d: _profile(d, "step")["outputs"].append("topk_ids"),
        ["draft: outputs of profile 'step' names 'topk_ids' twice"],
    ),
    "some outputs of an engine file": (
        eagle,
        _tensorrt,
        ["draft: profile 'step' lists outputs, but tensorrt computes them all"],
    ),
    "a path's file without a list of what it fills": (
        eagle,
        lambda d: _profile(d, "step_law").update(file="draft.onnx"),
        ["draft: profile 'step_law' has a file of its own, expected it to list its outputs"],
    ),
    "a path's file without a hash": (
        layer_skip,
        lambda d: d["target"]["profiles"][3].update(file="path.onnx"),
        ["'path.onnx' is used but has no entry under 'files'"],
    ),
    "step times of no profile": (
        sound_document,
        lambda d: d.update(adaptive={"step_ms": {"verify_9": 3.0}, "draft_ms": {}}),
        ["adaptive.step_ms names 'verify_9', expected one of prefill, step, verify_4"],
    ),
    "draft times of no graph": (
        sound_document,
        lambda d: d.update(
            draft={"kind": "ngram", "k": 3, "min_n": 1, "max_n": 2},
            adaptive={"step_ms": {}, "draft_ms": {"step": 3.0}},
        ),
        ["adaptive.draft_ms names 'step', expected one of no name"],
    ),
    "adaptive without a draft": (
        sound_document,
        lambda d: d.update(draft={"kind": "none"}, adaptive={"step_ms": {}, "draft_ms": {}}),
        ["adaptive is given with a draft of kind none"],
    ),
    "heads' file without a hash": (
        medusa,
        lambda d: d["files"].pop("draft.onnx"),
        ["'draft.onnx' is used but has no entry under 'files'"],
    ),
}


@pytest.mark.parametrize(("make", "mutate", "phrases"), CONTRADICTORY.values(), ids=CONTRADICTORY)
def test_a_draft_that_contradicts_its_target_is_refused(
    tmp_path: Path, make: Callable[[], Document], mutate: Callable[[Document], object], phrases: list[str]
) -> None:
    document = make()
    mutate(document)
    message = refusal(write_bundle(tmp_path, document))
    assert [phrase for phrase in ["contradicts itself", *phrases] if phrase not in message] == []


MALFORMED: dict[str, tuple[Callable[[Document], object], list[str]]] = {
    "no nodes": (
        lambda d: d["draft"]["tree"].update(parents=[], ranks=[]),
        ["draft.eagle3.tree.parents", "at least 1"],
    ),
    "a certain stop": (lambda d: d["draft"].update(stop_below=1.0), ["stop_below", "less than 1"]),
    "a stop that is no number": (lambda d: d["draft"].update(stop_below=float("nan")), ["stop_below"]),
    "an unknown key of a tree": (lambda d: d["draft"]["tree"].update(depth=2), ["'draft.eagle3.tree.depth'"]),
    "a profile of no outputs": (lambda d: _profile(d, "step").update(outputs=[]), ["outputs", "at least 1"]),
    "a step of no time": (
        lambda d: d.update(adaptive={"step_ms": {"step": 0.0}, "draft_ms": {}}),
        ["adaptive.step_ms.step", "greater than 0"],
    ),
}


@pytest.mark.parametrize(("mutate", "phrases"), MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_draft_is_refused(
    tmp_path: Path, mutate: Callable[[Document], object], phrases: list[str]
) -> None:
    document = eagle()
    mutate(document)
    message = refusal(write_bundle(tmp_path, document))
    assert [phrase for phrase in phrases if phrase not in message] == []
