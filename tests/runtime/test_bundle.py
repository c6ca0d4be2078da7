"""A bundle is read only if everything in it is what its manifest says; each defect has its own answer."""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specruntime.bundle import MAX_MANIFEST_BYTES, load_manifest
from specruntime.errors import BundleHashMismatch, BundleInvalid, BundleTooNew
from specruntime.manifest import SCHEMA_VERSION

Document = dict[str, Any]
FILES = {"target.onnx": b"target graph", "weights/target.data": b"\0" * 4096, "draft.onnx": b"draft graph"}


def graph(file: str, capacity: int) -> Document:
    cache = {"dtype": "float32", "shape": ["B", 2, capacity, 8]}
    kinds = ("key.0", "value.0", "key.1", "value.1")
    return {
        "file": file,
        "inputs": [
            {"name": "input_ids", "dtype": "int64", "shape": ["B", "W"]},
            {"name": "cache_length", "dtype": "int64", "shape": ["B"]},
            *({"name": f"past_{kind}", **cache} for kind in kinds),
        ],
        "outputs": [
            {"name": "top_ids", "dtype": "int64", "shape": ["B", "R"]},
            {"name": "logits", "dtype": "float32", "shape": ["B", "R", 128]},
            *({"name": f"present_{kind}", **cache} for kind in kinds),
        ],
        "aliases": [{"input": f"past_{kind}", "output": f"present_{kind}"} for kind in kinds],
        "profiles": [
            {"name": "step", "width": 1, "rows": 1},
            {"name": "verify_4", "width": 4, "rows": 4},
            {"name": "prefill", "width": 16, "rows": 1},
        ],
        "batch": 1,
        "capacity": capacity,
        "layers": 2,
        "vocab_size": 100,
        "padded_vocab_size": 128,
        "engine": {"kind": "onnxruntime", "provider": "cpu", "minimum_version": "1.32.0"},
    }


def sound_document() -> Document:
    return {
        "schema_version": SCHEMA_VERSION,
        "name": "sound",
        "producer": "tests",
        "precision": "fp32",
        "target": graph("target.onnx", 64),
        "draft": {"kind": "model", "k": 3, "graph": graph("draft.onnx", 64)},
        "eos_token_ids": [2],
        "check": {"prompts": [{"id": "ids", "ids": [1, 2, 3]}], "max_new_tokens": 4},
        "files": {
            name: {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
            for name, data in FILES.items()
        },
    }


def write_bundle(root: Path, document: object) -> Path:
    for name, data in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    (root / "manifest.json").write_text(json.dumps(document))
    return root


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_bundle(tmp_path / "sound.bundle", sound_document())


def refusal(root: Path, error: type[BundleInvalid] = BundleInvalid, verify: bool = True) -> str:
    """The message of the refusal, which must be of exactly this class."""
    with pytest.raises(error) as caught:
        load_manifest(root, verify=verify)
    assert caught.type is error
    message = str(caught.value)
    assert "\n" not in message, "a refusal is one line"
    return message


def test_a_sound_bundle_is_read(bundle: Path) -> None:
    manifest = load_manifest(bundle)
    assert manifest.name == "sound"
    assert manifest.target.profile("verify_4").width == 4


def test_a_bundle_is_read_after_it_moved_and_from_any_directory(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = bundle.rename(tmp_path / "elsewhere")
    copied = Path(shutil.copytree(moved, tmp_path / "copied"))
    monkeypatch.chdir(tmp_path)
    assert load_manifest("elsewhere") == load_manifest(copied)
    monkeypatch.chdir(copied)
    assert load_manifest(".").name == "sound"


def test_links_inside_the_bundle_are_followed(bundle: Path) -> None:
    (bundle / "target.onnx").rename(bundle / "blob")
    (bundle / "target.onnx").symlink_to("blob")
    (bundle / "weights").rename(bundle / "blobs")
    (bundle / "weights").symlink_to("blobs")
    assert load_manifest(bundle).name == "sound"


class TestManifestFile:
    def test_missing_directory(self, tmp_path: Path) -> None:
        message = refusal(tmp_path / "nowhere")
        assert "no bundle at" in message and "specexport build" in message

    def test_a_file_is_not_a_bundle(self, bundle: Path) -> None:
        assert "is a file; a bundle is the directory" in refusal(bundle / "manifest.json")

    def test_missing_manifest(self, bundle: Path) -> None:
        (bundle / "manifest.json").unlink()
        assert "has no manifest.json" in refusal(bundle)

    def test_unreadable_manifest(self, bundle: Path) -> None:
        (bundle / "manifest.json").unlink()
        (bundle / "manifest.json").mkdir()
        assert "cannot be read: it is not a regular file" in refusal(bundle)

    def test_a_pipe_is_refused_without_waiting_for_a_writer(self, bundle: Path) -> None:
        (bundle / "manifest.json").unlink()
        os.mkfifo(bundle / "manifest.json")
        assert "cannot be read: it is not a regular file" in refusal(bundle)

    def test_a_link_that_leaves_the_bundle(self, bundle: Path) -> None:
        (bundle / "manifest.json").rename(bundle.parent / "manifest.json")
        (bundle / "manifest.json").symlink_to(bundle.parent / "manifest.json")
        assert "'manifest.json' is a link to" in refusal(bundle)

    def test_a_link_inside_the_bundle_is_still_a_file_that_must_be_listed(self, bundle: Path) -> None:
        (bundle / "manifest.json").rename(bundle / "other.json")
        (bundle / "manifest.json").symlink_to("other.json")
        assert "'other.json' is in the bundle but has no entry" in refusal(bundle)

    def test_a_large_one_is_refused_before_it_is_parsed(self, bundle: Path) -> None:
        os.truncate(bundle / "manifest.json", MAX_MANIFEST_BYTES + 1)
        assert f"has {MAX_MANIFEST_BYTES + 1} bytes, expected at most" in refusal(bundle)

    def test_a_repeated_key_among_many_is_found_in_linear_time(self, bundle: Path) -> None:
        keys = ",".join(f'"k{index}":1' for index in range(200_000))
        (bundle / "manifest.json").write_text(f'{{{keys},"k199999":1}}')
        started = time.process_time()
        assert "the key 'k199999' is written twice" in refusal(bundle)
        assert time.process_time() - started < 5

    @pytest.mark.parametrize(
        "text", [b"", b"{", b"\xff\xfe{}", b"[" * 100_000, b'{"a": 1, "a": 2}'], ids=lambda t: repr(t[:8])
    )
    def test_not_json(self, bundle: Path, text: bytes) -> None:
        (bundle / "manifest.json").write_bytes(text)
        assert "manifest.json is not JSON" in refusal(bundle)

    @pytest.mark.parametrize("document", [[], "text", 3, None])
    def test_not_an_object(self, bundle: Path, document: object) -> None:
        assert "expected an object" in refusal(write_bundle(bundle, document))

    def test_a_newer_schema_is_refused_before_its_keys_are_looked_at(self, bundle: Path) -> None:
        document = {"schema_version": SCHEMA_VERSION + 6, "key_of_the_future": True}
        message = refusal(write_bundle(bundle, document), BundleTooNew)
        assert (
            f"schema version {SCHEMA_VERSION + 6}" in message and f"reads up to {SCHEMA_VERSION}" in message
        )

    @pytest.mark.parametrize("version", [None, True, 0, -1, "1", 1.5])
    def test_schema_version_that_is_no_version(self, bundle: Path, version: object) -> None:
        document = sound_document() | {"schema_version": version}
        assert "schema_version is" in refusal(write_bundle(bundle, document))


def _rename(holder: Document, old: str, new: str) -> None:
    holder[new] = holder.pop(old)


MALFORMED: dict[str, tuple[Callable[[Document], object], list[str]]] = {
    "unknown key": (lambda d: _rename(d, "producer", "producr"), ["'producr'", "did you mean 'producer'?"]),
    "unknown nested key": (
        lambda d: _rename(d["target"]["inputs"][0], "shape", "shap"),
        ["'target.inputs.0.shap'", "did you mean 'shape'?", "allowed: dtype, name, shape"],
    ),
    "unknown key in a union": (
        lambda d: _rename(d["draft"]["graph"], "capacity", "capcity"),
        ["capcity", "did you mean 'capacity'?"],
    ),
    "unknown key of a file": (
        lambda d: _rename(d["files"]["draft.onnx"], "bytes", "byte"),
        ["did you mean 'bytes'?", "allowed: bytes, sha256"],
    ),
    "missing key": (lambda d: d.pop("precision"), ["'precision' is missing"]),
    "number as text": (lambda d: d["target"].update(capacity="64"), ["target.capacity", "'64'", "integer"]),
    "negative number": (
        lambda d: d["target"].update(capacity=-1),
        ["target.capacity", "-1", "greater than or equal to 1"],
    ),
    "unknown dtype": (
        lambda d: d["target"]["inputs"][0].update(dtype="int3"),
        ["target.inputs.0.dtype", "int3", "int32"],
    ),
    "unknown draft kind": (lambda d: d["draft"].update(kind="oracle"), ["draft", "oracle", "ngram"]),
    "capacity beyond any machine": (
        lambda d: d["target"].update(capacity=10**18),
        ["target.capacity", "less than or equal to 2147483647"],
    ),
    "dimension beyond any machine": (
        lambda d: d["target"]["inputs"][0].update(shape=["B", 10**30]),
        ["target.inputs.0.shape.1", "1000000000000000000000000000000"],
    ),
    "threads beyond any machine": (
        lambda d: d["target"]["engine"].update(threads=1025),
        ["threads", "1025", "less than or equal to 1024"],
    ),
    "token beyond any vocabulary": (
        lambda d: d["check"]["prompts"][0].update(ids=[10**30]),
        ["check.prompts.0.ids.0", "less than or equal to"],
    ),
    "no profiles": (lambda d: d["target"].update(profiles=[]), ["target.profiles", "at least 1 item"]),
    "more profiles than any graph": (
        lambda d: d["target"]["profiles"].extend(
            {"name": f"z{index}", "width": 8, "rows": 8} for index in range(126)
        ),
        ["target.profiles", "at most 128 items"],
    ),
    "version that is none": (
        lambda d: d["target"]["engine"].update(minimum_version="é\0"),
        ["minimum_version", "should match pattern"],
    ),
    "key of several lines": (
        lambda d: d["files"].update({"a\nb": {"sha256": "abc", "bytes": 1}}),
        [r"files.a\nb.sha256"],
    ),
    "more files than any bundle": (
        lambda d: d["files"].update({f"f{n}": {"sha256": "0" * 64, "bytes": 1} for n in range(5000)}),
        ["files: found", "at most 4096 items"],
    ),
    "name longer than any file system takes": (
        lambda d: d["files"].update({"x" * 5000: {"sha256": "0" * 64, "bytes": 1}}),
        ["files.xxx", "at most 1000 characters"],
    ),
    "hash that is none": (
        lambda d: d["files"]["draft.onnx"].update(sha256="abc"),
        ["files.draft.onnx.sha256", "'abc'"],
    ),
}


@pytest.mark.parametrize(("mutate", "phrases"), MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_manifest_is_refused(
    bundle: Path, mutate: Callable[[Document], object], phrases: list[str]
) -> None:
    document = sound_document()
    mutate(document)
    message = refusal(write_bundle(bundle, document))
    assert [phrase for phrase in phrases if phrase not in message] == []


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
    "an input nobody fills": (
        lambda d: d["target"]["inputs"].append({"name": "extra", "dtype": "int64", "shape": ["B"]}),
        ["target.inputs names 'extra', expected one of input_ids, cache_length"],
    ),
    "an output nobody reads": (
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


class TestFiles:
    def test_missing(self, bundle: Path) -> None:
        (bundle / "draft.onnx").unlink()
        assert "draft.onnx is missing from the bundle" in refusal(bundle, verify=False)

    def test_truncated(self, bundle: Path) -> None:
        os.truncate(bundle / "weights/target.data", 4095)
        message = refusal(bundle, verify=False)
        assert "weights/target.data is truncated: found 4095 bytes, the manifest says 4096" in message

    def test_longer(self, bundle: Path) -> None:
        os.truncate(bundle / "weights/target.data", 4097)
        assert "longer than it was: found 4097 bytes" in refusal(bundle, verify=False)

    def test_one_changed_byte(self, bundle: Path) -> None:
        changed = b"\1" + FILES["weights/target.data"][1:]
        (bundle / "weights/target.data").write_bytes(changed)
        message = refusal(bundle, BundleHashMismatch)
        assert "weights/target.data" in message
        assert hashlib.sha256(changed).hexdigest() in message
        assert hashlib.sha256(FILES["weights/target.data"]).hexdigest() in message

    def test_hashes_are_only_skipped_on_request(self, bundle: Path) -> None:
        (bundle / "draft.onnx").write_bytes(FILES["draft.onnx"].upper())
        assert load_manifest(bundle, verify=False).name == "sound"
        refusal(bundle, BundleHashMismatch)

    @pytest.mark.parametrize(
        "name", ["notes.txt", "weights/other.data", "weights/manifest.json", "new/.hidden"]
    )
    def test_an_unlisted_file_is_refused_by_name(self, bundle: Path, name: str) -> None:
        (bundle / name).parent.mkdir(exist_ok=True)
        (bundle / name).write_bytes(b"")
        message = refusal(bundle, verify=False)
        assert f"{name!r} is in the bundle but has no entry under 'files'" in message

    def test_weights_cannot_be_left_out_of_the_list(self, bundle: Path) -> None:
        document = sound_document()
        del document["files"]["weights/target.data"]
        message = refusal(write_bundle(bundle, document), verify=False)
        assert "'weights/target.data' is in the bundle but has no entry" in message

    def test_unlisted_links_are_refused(self, bundle: Path) -> None:
        (bundle / "weights" / "manifest").symlink_to("../manifest.json")
        assert "'weights/manifest' is in the bundle" in refusal(bundle)
        (bundle / "weights" / "manifest").unlink()
        (bundle / "outside").symlink_to(bundle.parent)
        assert "'outside' is a link to" in refusal(bundle)

    def test_an_unlisted_pipe_is_refused(self, bundle: Path) -> None:
        os.mkfifo(bundle / "build.json")
        assert "'build.json' is in the bundle" in refusal(bundle)

    def test_a_directory_is_no_file(self, bundle: Path) -> None:
        (bundle / "draft.onnx").unlink()
        (bundle / "draft.onnx").mkdir()
        assert "draft.onnx is not a regular file" in refusal(bundle)

    def test_a_pipe_is_refused_without_waiting_for_a_writer(self, bundle: Path) -> None:
        (bundle / "draft.onnx").unlink()
        os.mkfifo(bundle / "draft.onnx")
        assert "draft.onnx is not a regular file" in refusal(bundle)


class TestConfinement:
    @pytest.mark.parametrize(
        "name",
        [
            "/etc/hostname",
            "../secret",
            "weights/../../secret",
            "C:\\secret",
            "C:secret",
            "a\\b",
            "\\\\host\\share",
            "a\0b",
            "a\nb",
        ],
    )
    def test_a_name_that_leaves_the_bundle(self, bundle: Path, name: str) -> None:
        (bundle.parent / "secret").write_bytes(FILES["draft.onnx"])
        document = sound_document()
        document["draft"]["graph"]["file"] = name
        document["files"][name] = document["files"].pop("draft.onnx")
        message = refusal(write_bundle(bundle, document), verify=False)
        assert repr(name) in message and "not a plain relative path" in message

    def test_a_link_that_leaves_the_bundle(self, bundle: Path) -> None:
        outside = bundle.parent / "secret"
        outside.write_bytes(FILES["draft.onnx"])
        (bundle / "draft.onnx").unlink()
        (bundle / "draft.onnx").symlink_to(outside)
        message = refusal(bundle, verify=False)
        assert "'draft.onnx' is a link to" in message and "outside the bundle" in message

    def test_a_linked_directory_that_leaves_the_bundle(self, bundle: Path) -> None:
        (bundle / "weights").rename(bundle.parent / "weights")
        (bundle / "weights").symlink_to(bundle.parent / "weights")
        assert "outside the bundle" in refusal(bundle, verify=False)

    def test_a_loop_of_links(self, bundle: Path) -> None:
        (bundle / "draft.onnx").unlink()
        (bundle / "draft.onnx").symlink_to("draft.onnx")
        assert "draft.onnx" in refusal(bundle, verify=False)
