"""Manifests of bundles with each kind of draft, as documents that tests change."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from specruntime.bundle import load_manifest
from tests.runtime.manifest.bundle_documents import Document, graph, refusal, sound_document, write_bundle

F = 24
Case: TypeAlias = tuple[Callable[[], Document], Callable[[Document], object], list[str]]
"""What makes a document, what breaks it, and the phrases of the refusal."""
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
    document["inputs"] += [
        tensor("window_mask", "bool", "B", "W", "W"),
        tensor("hidden", "float32", "B", "W", F),
    ]
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
        {"name": "level_1", "width": 4, "rows": 4, "outputs": lean},
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


def without(document: Document, key: str, name: str) -> None:
    document["target"][key] = [tensor for tensor in document["target"][key] if tensor["name"] != name]


def profile_of(document: Document, name: str) -> Document:
    graphs = (document["draft"].get("graph", {"profiles": []}), document["target"])
    return next(profile for graph in graphs for profile in graph["profiles"] if profile["name"] == name)


def require_refused(place: Path, case: Case) -> None:
    """The bundle that the case makes contradicts itself, and the refusal says all of its phrases."""
    make, mutate, phrases = case
    document = make()
    mutate(document)
    message = refusal(write_bundle(place, document))
    assert [phrase for phrase in ["contradicts itself", *phrases] if phrase not in message] == []
