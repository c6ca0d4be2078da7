"""A graph over the operators of specruntime-kernels in a manifest: what must agree, what differs from the plain one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specruntime.manifest.graph import over_operators
from specruntime.manifest.schema import GraphSpec, OnnxRuntimeEngine, window_of
from tests.runtime.manifest.bundle_documents import Document, refusal, sound_document, write_bundle


def windowed() -> Document:
    document = sound_document()
    for name in ("window.onnx", "window.weights"):
        document["files"][name] = document["files"]["target.onnx"]
    document["target"]["engine"]["window"] = {
        "file": "window.onnx",
        "weights": ["window.weights"],
        "operators": 1,
        "layout": 1,
    }
    return document


def window(document: Document) -> dict[str, Any]:
    found: dict[str, Any] = document["target"]["engine"]["window"]
    return found


def provider(document: Document) -> None:
    document["target"]["engine"]["provider"] = "cuda"


def own_path(document: Document) -> None:
    outputs = [output["name"] for output in document["target"]["outputs"]]
    document["target"]["profiles"][0] |= {"file": "step.onnx", "outputs": outputs}
    document["files"]["step.onnx"] = document["files"]["target.onnx"]


def half_cache(document: Document) -> None:
    window(document)["cache"] = "int8"
    for kind in ("inputs", "outputs"):
        for tensor in document["target"][kind]:
            if tensor["name"].startswith(("past_", "present_")):
                tensor["dtype"] = "float16"


REFUSED: dict[str, tuple[Callable[[Document], object], str]] = {
    "a file that is not listed": (
        lambda d: d["files"].pop("window.weights"),
        "'window.weights' is used but has no",
    ),
    "the plain file": (
        lambda d: window(d).update(file="target.onnx"),
        "target.engine.window: found 'target.onnx', expected another file next to 'target.onnx'",
    ),
    "a file elsewhere": (lambda d: window(d).update(file="other/window.onnx"), "found 'other/window.onnx'"),
    "weights outside": (
        lambda d: window(d).update(weights=["../window.weights"]),
        "'../window.weights' is used but has no entry under 'files'",
    ),
    "one file twice": (lambda d: window(d).update(weights=["window.onnx"]), "names 'window.onnx' twice"),
    "another provider": (provider, "target.engine.window: found with provider cuda, expected provider cpu"),
    "a path that no profile has": (
        lambda d: window(d).update(paths={"step.onnx": "window.step.onnx"}),
        "target.engine.window.paths: 'step.onnx' is in only one of paths and the files of target.profiles",
    ),
    "a profile's path that is left out": (own_path, "'step.onnx' is in only one of paths and the files"),
    "an int8 cache of a half one": (
        half_cache,
        "window.cache is int8, but past_key.0 is float16; expected float32",
    ),
    "no weights": (lambda d: window(d).update(weights=[]), "weights"),
    "an unknown cache": (lambda d: window(d).update(cache="int4"), "cache"),
    "a version of nothing": (lambda d: window(d).update(operators=0), "operators"),
    "an int8 tensor of the plain graph": (
        lambda d: d["target"]["inputs"][2].update(dtype="int8"),
        "past_key.0",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_agree_is_refused(case: str, tmp_path: Path) -> None:
    change, words = REFUSED[case]
    document = windowed()
    change(document)
    assert words in refusal(write_bundle(tmp_path, document))


def test_paths_and_an_int8_cache() -> None:
    document = windowed()
    own_path(document)
    window(document).update(paths={"step.onnx": "window.step.onnx"}, cache="int8")
    document["files"]["window.step.onnx"] = document["files"]["target.onnx"]
    graph = GraphSpec.model_validate(document["target"])
    opened = over_operators(graph)
    assert (opened.file, opened.weights) == ("window.onnx", ("window.weights",))
    assert [profile.file for profile in opened.profiles] == ["window.step.onnx", None, None]
    for before, after in zip((*graph.inputs, *graph.outputs), (*opened.inputs, *opened.outputs), strict=True):
        if before.name.startswith(("past_", "present_")):
            assert (after.dtype, after.shape) == ("int8", ("B", 2, 64, 12))
        else:
            assert after == before
    assert graph.inputs[2].dtype == "float32"


def test_a_graph_without_one_is_written_as_before() -> None:
    engine = OnnxRuntimeEngine(minimum_version="1.32.0")
    assert "window" not in engine.model_dump() and "window" not in engine.model_dump(mode="json")
    graph = GraphSpec.model_validate(windowed()["target"])
    assert graph.model_dump(mode="json")["engine"]["window"]["file"] == "window.onnx"
    assert window_of(graph) == GraphSpec.model_validate_json(graph.model_dump_json()).engine.window  # type: ignore[union-attr]
