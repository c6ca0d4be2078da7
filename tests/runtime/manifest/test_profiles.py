"""Outputs, files and times of a manifest's profiles: each contradiction has its own answer."""

from pathlib import Path

import pytest

from tests.runtime.manifest.bundle_documents import Document, sound_document
from tests.runtime.manifest.draft_documents import Case, eagle, layer_skip, profile_of, require_refused


def _tensorrt(document: Document) -> None:
    graph = document["draft"]["graph"]
    names = [profile["name"] for profile in graph["profiles"]]
    engine = {"kind": "tensorrt", "version": "10.15", "optimization_profiles": dict.fromkeys(names, 0)}
    graph["engine"] = engine


CONTRADICTORY: dict[str, Case] = {
    "a profile that leaves the features out": (
        eagle,
        lambda d: d["target"]["profiles"][1].update(
            outputs=[output["name"] for output in d["target"]["outputs"] if output["name"] != "features"]
        ),
        ["target: profile 'verify_4' does not compute the features"],
    ),
    "an output a profile cannot compute": (
        eagle,
        lambda d: profile_of(d, "step")["outputs"].append("top_ids"),
        ["draft: profile 'step' computes 'top_ids', which is not an output of the graph"],
    ),
    "an output computed twice": (
        eagle,
        lambda d: profile_of(d, "step")["outputs"].append("topk_ids"),
        ["draft: outputs of profile 'step' names 'topk_ids' twice"],
    ),
    "some outputs of an engine file": (
        eagle,
        _tensorrt,
        ["draft: profile 'step' lists outputs, but tensorrt computes them all"],
    ),
    "a path's file without a list of what it fills": (
        eagle,
        lambda d: profile_of(d, "step_law").update(file="draft.onnx"),
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
}


@pytest.mark.parametrize("name", CONTRADICTORY)
def test_a_profile_that_contradicts_its_graph_is_refused(tmp_path: Path, name: str) -> None:
    require_refused(tmp_path, CONTRADICTORY[name])
