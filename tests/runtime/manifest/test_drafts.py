"""Each kind of draft is read from a manifest, and each way its graph can contradict its target has its own answer."""

from collections.abc import Callable
from pathlib import Path

import pytest

from specruntime.drafts import EagleDraft, LayerSkipDraft, MedusaDraft
from tests.runtime.manifest.bundle_documents import Document, refusal, sound_document, write_bundle
from tests.runtime.manifest.draft_documents import (
    Case,
    eagle,
    layer_skip,
    medusa,
    profile_of,
    read,
    require_refused,
    without,
)


def test_every_kind_is_read(tmp_path: Path) -> None:
    chain = read(tmp_path, eagle(kind="eagle", k=3, tree=None, stop_below=0.25))
    assert isinstance(chain, EagleDraft) and (chain.k, chain.nodes, chain.stop_below) == (3, 3, 0.25)
    static = read(tmp_path, eagle())
    assert isinstance(static, EagleDraft) and static.tree is not None
    assert static.tree.depths == (1, 1, 2) and static.nodes == 3 and static.own_graph is static.graph
    dynamic = read(tmp_path, eagle(tree=None, dynamic={"nodes": 3, "branch": 2}))
    assert isinstance(dynamic, EagleDraft) and dynamic.nodes == 3
    heads = read(tmp_path, medusa())
    assert isinstance(heads, MedusaDraft) and (heads.k, heads.nodes) == (2, 3)
    itself = read(tmp_path, layer_skip())
    assert isinstance(itself, LayerSkipDraft) and itself.own_graph is None
    assert itself.k == itself.nodes == 3


def offer(document: Document, *sizes: int) -> None:
    document["draft"]["graph"]["outputs"][0]["shape"][2:] = sizes


CONTRADICTORY: dict[str, Case] = {
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
    "a fused draft without a window of two tokens": (
        sound_document,
        lambda d: (
            d["draft"].update(fused=True),
            d["draft"]["graph"]["outputs"][0].update(shape=["B", 3]),
            d["draft"]["graph"]["outputs"][1].update(shape=["B", 1, 128]),
            d["draft"]["graph"]["profiles"].pop(1),
        ),
        ["the narrowest profile of a fused draft is 1 wide, expected 2"],
    ),
    "a step that computes no candidates": (
        eagle,
        lambda d: profile_of(d, "step")["outputs"].remove("topk_ids"),
        ["draft.graph: profile 'step' does not compute 'topk_ids', which this draft reads"],
    ),
    "heads of no probabilities": (
        medusa,
        lambda d: profile_of(d, "heads").update(outputs=["topk_ids"]),
        ["draft.graph: profile 'heads' does not compute 'topk_logprobs'"],
    ),
    "a target that tells nothing": (
        eagle,
        lambda d: without(d, "outputs", "features"),
        ["draft.graph takes hidden, but target.outputs has no 'features'"],
    ),
    "features of another size": (
        medusa,
        lambda d: d["draft"]["graph"]["inputs"][0].update(shape=["B", "W", 32]),
        ["target gives features of 24, but draft.graph takes hidden of 32"],
    ),
    "a step that takes another size than it gives": (
        eagle,
        lambda d: d["draft"]["graph"]["outputs"][2].update(shape=["B", "W", 32]),
        ["draft.graph takes hidden of 24 and gives next_hidden of 32"],
    ),
    "as many candidates as log-probabilities": (
        eagle,
        lambda d: offer(d, 5),
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
            profile_of(d, "step_law").update(name="odd") or d["draft"]["graph"]["profiles"][0].update(width=2)
        ),
        ["draft.graph: profile 'step' is 2 wide with 1 rows, expected 1 and 1"],
    ),
    "more heads than the graph has": (
        medusa,
        lambda d: d["draft"].update(heads=4),
        ["draft.heads is 4, but topk_ids of its graph has 3"],
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
    "heads' file without a hash": (
        medusa,
        lambda d: d["files"].pop("draft.onnx"),
        ["'draft.onnx' is used but has no entry under 'files'"],
    ),
}


@pytest.mark.parametrize("name", CONTRADICTORY)
def test_a_draft_that_contradicts_its_target_is_refused(tmp_path: Path, name: str) -> None:
    require_refused(tmp_path, CONTRADICTORY[name])


MALFORMED: dict[str, tuple[Callable[[Document], object], list[str]]] = {
    "no nodes": (
        lambda d: d["draft"]["tree"].update(parents=[], ranks=[]),
        ["draft.tree.parents", "at least 1"],
    ),
    "a certain stop": (lambda d: d["draft"].update(stop_below=1.0), ["stop_below", "less than 1"]),
    "a stop that is not a number": (lambda d: d["draft"].update(stop_below=float("nan")), ["stop_below"]),
    "an unknown key of a tree": (
        lambda d: d["draft"]["tree"].update(depth=2),
        ["draft.tree.depth: unknown key"],
    ),
    "a profile of no outputs": (
        lambda d: profile_of(d, "step").update(outputs=[]),
        ["outputs", "at least 1"],
    ),
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
