"""A target's manifest that contradicts itself is refused, each contradiction in its own words."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.runtime.manifest.bundle_documents import Document, refusal, sound_document, write_bundle


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_bundle(tmp_path / "sound.bundle", sound_document())


def _swap_outputs(document: Document, first: int, second: int) -> None:
    pairs = document["target"]["aliases"]
    pairs[first]["output"], pairs[second]["output"] = pairs[second]["output"], pairs[first]["output"]


def _rename_cache(document: Document, old: str, new: str) -> None:
    target = document["target"]
    for tensor in (*target["inputs"], *target["outputs"]):
        tensor["name"] = tensor["name"].replace(old, new)
    target["aliases"] = [{key: name.replace(old, new) for key, name in p.items()} for p in target["aliases"]]


def _pair(document: Document, index: int) -> tuple[Document, Document]:
    target = document["target"]
    return target["inputs"][2 + index], target["outputs"][2 + index]


def _fuse(target: Document, k: int, profiles: int = 3) -> None:
    del target["profiles"][profiles:]
    target["outputs"][0].update(shape=["B", k])
    target["outputs"][1].update(shape=["B", 1, 128])


def _pack(document: Document, **keys: object) -> Document:
    packed = {
        "file": "draft.onnx",
        "version": "1.32.0",
        "architecture": "x86_64",
        "features": ["avx2"],
        "weights": "draft.onnx",
        "bytes": 5,
        "plain_sha256": "0" * 64,
    }
    document["target"]["engine"]["prepacked"] = packed | keys
    return document


CONTRADICTORY: dict[str, tuple[Callable[[Document], object], list[str]]] = {
    "alias of no input": (
        lambda d: d["target"]["aliases"][0].update(input="past_key.7"),
        ["target.aliases", "'past_key.7'", "not an input"],
    ),
    "alias of no output": (
        lambda d: d["draft"]["graph"]["aliases"][0].update(output="present_key.7"),
        ["draft.aliases", "'present_key.7'", "not an output"],
    ),
    "alias twice": (
        lambda d: d["target"]["aliases"].append(d["target"]["aliases"][0]),
        ["target.aliases", "'present_key.0' twice"],
    ),
    "no aliases": (
        lambda d: d["target"].update(aliases=[]),
        ["target.aliases has 0 pairs, expected 4 for 2 layers"],
    ),
    "an alias left out": (
        lambda d: d["draft"]["graph"]["aliases"].pop(),
        ["draft.aliases has 3 pairs, expected 4 for 2 layers"],
    ),
    "keys paired with values": (
        lambda d: _swap_outputs(d, 0, 1),
        ["target.aliases pairs 'past_key.0' with 'present_value.0', expected 'present_key.0'"],
    ),
    "layers swapped": (
        lambda d: _swap_outputs(d, 0, 2),
        ["target.aliases pairs 'past_key.0' with 'present_key.1', expected 'present_key.0'"],
    ),
    "a cache input left out": (
        lambda d: (d["target"]["inputs"].pop(), d["target"]["aliases"].pop()),
        ["target.inputs has 3 tensors named past_*, expected 4 for 2 layers"],
    ),
    "a cache output left out": (
        lambda d: (d["target"]["outputs"].pop(), d["target"]["aliases"].pop()),
        ["target.outputs has 3 tensors named present_*, expected 4 for 2 layers"],
    ),
    "more layers than caches": (
        lambda d: d["target"].update(layers=2**31 - 1),
        ["target.inputs has 4 tensors", "expected 4294967294"],
    ),
    "a cache of a layer that is not there": (
        lambda d: _rename_cache(d, "value.1", "value.2"),
        ["target.inputs has no 'past_value.1', expected one for each of 2 layers"],
    ),
    "cache pair of two shapes": (
        lambda d: d["target"]["outputs"][2].update(shape=["B", 4, 64, 8]),
        ["past_key.0 and present_key.0", "shapes differ", "['B', 2, 64, 8] and ['B', 4, 64, 8]"],
    ),
    "cache pair of two dtypes": (
        lambda d: d["target"]["outputs"][2].update(dtype="float16"),
        ["past_key.0 and present_key.0", "dtypes differ", "float32 and float16"],
    ),
    "cache of another capacity": (
        lambda d: d["target"].update(capacity=128),
        ["past_key.0 has shape ['B', 2, 64, 8]", "capacity 128"],
    ),
    "cache without fixed heads": (
        lambda d: [t.update(shape=["B", "W", 64, 8]) for t in (*_pair(d, 0),)],
        ["past_key.0 has shape ['B', 'W', 64, 8]", "kv_heads"],
    ),
    "cache of whole numbers": (
        lambda d: [t.update(dtype="int64") for t in _pair(d, 0)],
        ["past_key.0 is int64, expected one of float32"],
    ),
    "cache beyond any machine": (
        lambda d: [t.update(shape=["B", 2**31 - 1, 64, 2**31 - 1]) for t in _pair(d, 0)],
        ["past_key.0 takes", "bytes at its widest profile, expected at most 1099511627776"],
    ),
    "packed weights of a file that is not listed": (
        lambda d: _pack(d, file="packed.onnx"),
        ["'packed.onnx' is used but has no entry under 'files'"],
    ),
    "packed weights elsewhere": (
        lambda d: _pack(d, file="weights/target.data"),
        [
            "target.engine.prepacked.file: found 'weights/target.data', expected another file next to 'target.onnx'"
        ],
    ),
    "packed weights in the graph itself": (
        lambda d: _pack(d, file="target.onnx"),
        ["target.engine.prepacked.file: found 'target.onnx', expected another file next to 'target.onnx'"],
    ),
    "packed weights of a device": (
        lambda d: (_pack(d), d["target"]["engine"].update(provider="cuda")),
        ["target.engine.prepacked: found with provider cuda, expected provider cpu"],
    ),
    "packed weights in another directory": (
        lambda d: _pack(d, weights="weights/target.data"),
        ["target.engine.prepacked.weights: found 'weights/target.data', expected another file next to"],
    ),
    "packed weights beyond their file": (
        lambda d: _pack(d, bytes=11),
        ["target.engine.prepacked.bytes: found 11, expected fewer than 'draft.onnx' has, which are 11"],
    ),
    "a batch without its size": (
        lambda d: d["target"].update(batch=1000),
        ["target.batch_sizes: found [1], expected ascending sizes from 1 to target.batch, which is 1000"],
    ),
    "batch sizes in disorder": (
        lambda d: d["target"].update(batch=4, batch_sizes=[1, 4, 2, 4]),
        ["target.batch_sizes: found [1, 4, 2, 4]"],
    ),
    "a window input left out": (
        lambda d: d["target"]["inputs"].pop(1),
        ["target.inputs has no 'cache_length'"],
    ),
    "an input that is never filled": (
        lambda d: d["target"]["inputs"].append({"name": "extra", "dtype": "int64", "shape": ["B"]}),
        ["target.inputs names 'extra', expected one of input_ids, cache_length"],
    ),
    "an output that is never read": (
        lambda d: d["target"]["outputs"].append({"name": "extra", "dtype": "int64", "shape": ["B"]}),
        ["target.outputs names 'extra', expected logits, top_ids, features"],
    ),
    "window input of another dtype": (
        lambda d: d["target"]["inputs"][0].update(dtype="int32"),
        ["target.inputs: input_ids is int32, expected int64"],
    ),
    "window input of another shape": (
        lambda d: d["target"]["inputs"][1].update(shape=["B", "R"]),
        ["target.inputs: cache_length has shape ['B', 'R'], expected ['B']"],
    ),
    "window input without a shape": (
        lambda d: d["target"]["inputs"][0].update(shape=[]),
        ["target.inputs: input_ids has shape [], expected ['B', 'W']"],
    ),
    "no logits": (lambda d: d["target"]["outputs"].pop(1), ["target.outputs has no 'logits'"]),
    "no token ids": (lambda d: d["target"]["outputs"].pop(0), ["target.outputs has no 'top_ids'"]),
    "logits of another dtype": (
        lambda d: d["target"]["outputs"][1].update(dtype="float16"),
        ["target.outputs: logits is float16, expected float32"],
    ),
    "logits of another vocabulary": (
        lambda d: d["target"].update(padded_vocab_size=5000),
        ["target.outputs: logits has shape ['B', 'R', 128], expected ['B', 'R', 5000]"],
    ),
    "token ids of no rows": (
        lambda d: d["target"]["outputs"][0].update(shape=[1]),
        ["target.outputs: top_ids has shape [1], expected ['B', 'R']"],
    ),
    "several drafts in windows of several rows": (
        lambda d: _fuse(d["target"], 3),
        ["target drafts 3 tokens a launch", "more than one row"],
    ),
    "several drafts a row of the target": (
        lambda d: _fuse(d["target"], 3, profiles=1),
        ["target drafts 3 tokens a launch, expected top_ids of one column a row"],
    ),
    "input named twice": (
        lambda d: d["target"]["inputs"].append(d["target"]["inputs"][0]),
        ["target.inputs names 'input_ids' twice"],
    ),
    "profile named twice": (
        lambda d: d["target"]["profiles"].append({"name": "step", "width": 2, "rows": 1}),
        ["target.profiles names 'step' twice"],
    ),
    "profile wider than the capacity": (
        lambda d: d["target"]["profiles"][2].update(width=65),
        ["profile 'prefill' is 65 wide", "capacity 64"],
    ),
    "profile with more rows than width": (
        lambda d: d["target"]["profiles"][1].update(rows=5),
        ["profile 'verify_4' has 5 rows in a window of 4"],
    ),
    "no profile of width 1": (lambda d: d["target"]["profiles"].pop(0), ["target has no profile of width 1"]),
    "draft longer than any window": (
        lambda d: d["draft"].update(k=4),
        ["draft.k is 4", "judges 4 rows", "5 are"],
    ),
    "n-gram bounds crossed": (
        lambda d: d.update(draft={"kind": "ngram", "k": 3, "min_n": 3, "max_n": 2}),
        ["draft.min_n is 3, above draft.max_n 2"],
    ),
    "vocabulary above its padding": (
        lambda d: d["target"].update(vocab_size=129),
        ["target.vocab_size is 129", "padded_vocab_size 128"],
    ),
    "end token outside the vocabulary": (
        lambda d: d.update(eos_token_ids=[100]),
        ["eos_token_ids has 100", "100 tokens"],
    ),
    "file without a hash": (
        lambda d: d["files"].pop("draft.onnx"),
        ["'draft.onnx' is used but has no entry under 'files'"],
    ),
}


@pytest.mark.parametrize(("mutate", "phrases"), CONTRADICTORY.values(), ids=CONTRADICTORY)
def test_a_manifest_that_contradicts_itself_is_refused(
    bundle: Path, mutate: Callable[[Document], object], phrases: list[str]
) -> None:
    document = sound_document()
    mutate(document)
    message = refusal(write_bundle(bundle, document))
    assert [phrase for phrase in ["contradicts itself", *phrases] if phrase not in message] == []
