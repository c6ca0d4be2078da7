"""A bundle is read only with a valid manifest; each way in which it is invalid has its own error."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from specruntime.bundle import MAX_MANIFEST_BYTES, _refuse_repeated_keys, load_manifest
from specruntime.errors import BundleTooNew
from specruntime.manifest.schema import SCHEMA_VERSION
from tests.runtime.manifest.bundle_documents import Document, refusal, sound_document, write_bundle


class Compared(str):
    """A key that counts how often it is compared with another, or hashed."""

    times = 0

    def __hash__(self) -> int:
        Compared.times += 1
        return super().__hash__()

    def __eq__(self, other: object) -> bool:
        Compared.times += 1
        return super().__eq__(other)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_bundle(tmp_path / "sound.bundle", sound_document())


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
        assert "the key 'k199999' is written twice" in refusal(bundle)
        pairs = [(Compared(f"k{index}"), 1) for index in range(3000)]
        with pytest.raises(ValueError, match="the key 'k2999' is written twice"):
            _refuse_repeated_keys([*pairs, (Compared("k2999"), 1)])
        assert Compared.times < 10 * len(pairs)

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
    "unknown key": (
        lambda d: _rename(d, "producer", "producr"),
        ["producr: unknown key", "did you mean 'producer'?"],
    ),
    "unknown nested key": (
        lambda d: _rename(d["target"]["inputs"][0], "shape", "shap"),
        ["target.inputs[0].shap: unknown key", "did you mean 'shape'?", "allowed: name, dtype, shape"],
    ),
    "unknown key in a union": (
        lambda d: _rename(d["draft"]["graph"], "capacity", "capcity"),
        ["capcity", "did you mean 'capacity'?"],
    ),
    "unknown key of a file": (
        lambda d: _rename(d["files"]["draft.onnx"], "bytes", "byte"),
        ["did you mean 'bytes'?", "allowed: sha256, bytes"],
    ),
    "missing key": (lambda d: d.pop("precision"), ["precision: missing, and required"]),
    "number as text": (lambda d: d["target"].update(capacity="64"), ["target.capacity", '"64"', "integer"]),
    "negative number": (
        lambda d: d["target"].update(capacity=-1),
        ["target.capacity", "-1", "greater than or equal to 1"],
    ),
    "unknown dtype": (
        lambda d: d["target"]["inputs"][0].update(dtype="int3"),
        ["target.inputs[0].dtype", "int3", "int32"],
    ),
    "unknown draft kind": (
        lambda d: d["draft"].update(kind="oracle"),
        ["draft.kind: found 'oracle', allowed: none, ngram"],
    ),
    "capacity beyond any machine": (
        lambda d: d["target"].update(capacity=10**18),
        ["target.capacity", "less than or equal to 2147483647"],
    ),
    "dimension beyond any machine": (
        lambda d: d["target"]["inputs"][0].update(shape=["B", 10**30]),
        ["target.inputs[0].shape[1]", "1000000000000000000000000000000"],
    ),
    "threads beyond any machine": (
        lambda d: d["target"]["engine"].update(threads=1025),
        ["threads", "1025", "less than or equal to 1024"],
    ),
    "token beyond any vocabulary": (
        lambda d: d["check"]["prompts"][0].update(ids=[10**30]),
        ["check.prompts[0].ids[0]", "less than or equal to"],
    ),
    "no profiles": (lambda d: d["target"].update(profiles=[]), ["target.profiles", "at least 1 of them"]),
    "more profiles than any graph": (
        lambda d: d["target"]["profiles"].extend(
            {"name": f"z{index}", "width": 8, "rows": 8} for index in range(126)
        ),
        ["target.profiles", "at most 128 of them"],
    ),
    "invalid version": (
        lambda d: d["target"]["engine"].update(minimum_version="é\0"),
        ["minimum_version", "expected text that matches"],
    ),
    "key of several lines": (
        lambda d: d["files"].update({"a\nb": {"sha256": "abc", "bytes": 1}}),
        [r"files.a\nb.sha256"],
    ),
    "more files than any bundle": (
        lambda d: d["files"].update({f"f{n}": {"sha256": "0" * 64, "bytes": 1} for n in range(5000)}),
        ["files: found", "at most 4096 of them"],
    ),
    "name longer than any file system takes": (
        lambda d: d["files"].update({"x" * 5000: {"sha256": "0" * 64, "bytes": 1}}),
        ["files.xxx", "at most 1000 characters"],
    ),
    "invalid hash": (
        lambda d: d["files"]["draft.onnx"].update(sha256="abc"),
        ["files.draft.onnx.sha256", '"abc"'],
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
