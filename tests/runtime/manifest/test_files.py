"""The files of a bundle are those its manifest lists, whole, unchanged and inside its directory."""

import hashlib
import os
from pathlib import Path

import pytest

from specruntime.bundle import load_manifest
from specruntime.errors import BundleHashMismatch
from specruntime.manifest.files import Ending, check_files
from tests.runtime.manifest.bundle_documents import FILES, refusal, sound_document, write_bundle


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_bundle(tmp_path / "sound.bundle", sound_document())


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
        assert "larger than recorded: found 4097 bytes" in refusal(bundle, verify=False)

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
        ("place", "when"), [(0, "first"), (4000, "first"), (4001, "last"), (4095, "last")]
    )
    def test_the_ending_of_a_file_is_checked_last(self, bundle: Path, place: int, when: str) -> None:
        """What precedes it is checked at once; the ending by the whole file's digest, in the returned check."""
        files, name = load_manifest(bundle).files, "weights/target.data"
        endings = {name: Ending(95, hashlib.sha256(FILES[name][:-95]).hexdigest())}
        check_files(bundle, files, hashes=True, endings=endings)()
        changed = bytearray(FILES[name])
        changed[place] ^= 1
        (bundle / name).write_bytes(changed)
        if when == "first":
            with pytest.raises(BundleHashMismatch, match=f"{name} was modified after the build"):
                check_files(bundle, files, hashes=True, endings=endings)
        else:
            rest = check_files(bundle, files, hashes=True, endings=endings)
            with pytest.raises(
                BundleHashMismatch, match=f"{name} was modified after the build.*{files[name].sha256}"
            ):
                rest()

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
