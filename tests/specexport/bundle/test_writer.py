"""A build replaces bundles and nothing else."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from specexport.bundle.writer import check_output, staged_bundle
from specexport.errors import BundleNotWritten
from specruntime.manifest.schema import MANIFEST_NAME


def make_bundle(place: Path, content: str = "old") -> Path:
    """As much of a bundle as the writer looks at."""
    (place / "target").mkdir(parents=True)
    (place / "target" / "graph.onnx").write_text(content)
    manifest = {"schema_version": 1, "producer": "specexport 0.1.0", "files": {"target/graph.onnx": {}}}
    (place / MANIFEST_NAME).write_text(json.dumps(manifest))
    return place


def replace(output: Path) -> None:
    with staged_bundle(output) as root:
        shutil.rmtree(root)
        make_bundle(root, "new")


def content(place: Path) -> str:
    return (place / "target" / "graph.onnx").read_text()


def tree(place: Path) -> list[str]:
    return sorted(str(path.relative_to(place)) for path in place.rglob("*"))


def move_away(place: Path) -> None:
    """Its directory becomes a link to one elsewhere."""
    (place / "target").rename(place.parent / "away")
    (place / "target").symlink_to(place.parent / "away")


FOREIGN: dict[str, Callable[[Path], object]] = {
    "thesis.txt": lambda place: (place / "thesis.txt").write_text("years of work"),
    "target/notes.txt": lambda place: (place / "target" / "notes.txt").write_text("x"),
    "photos": lambda place: (place / "photos").mkdir(),
    "link": lambda place: (place / "link").symlink_to("/"),
    "target": move_away,
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_bundle_that_holds_a_foreign_file_is_not_replaced(tmp_path: Path, name: str) -> None:
    place = make_bundle(tmp_path / "x.bundle")
    FOREIGN[name](place)
    before = tree(tmp_path)
    with pytest.raises(BundleNotWritten, match=f"holds '{name}', which its manifest.json does not list"):
        replace(place)
    assert tree(tmp_path) == before and content(place) == "old"


@pytest.mark.parametrize(
    "manifest",
    [
        "{}",
        "[]",
        "{",
        "[" * 100_000,
        '{"schema_version": 1, "producer": "a web page", "files": {}}',
        '{"schema_version": 1, "producer": "specexport 0.1.0"}',
        '{"producer": "specexport 0.1.0", "files": {}}',
    ],
    ids=range(7),
)
def test_a_directory_with_another_programs_manifest_is_not_replaced(tmp_path: Path, manifest: str) -> None:
    place = tmp_path / "extension"
    place.mkdir()
    (place / MANIFEST_NAME).write_text(manifest)
    with pytest.raises(BundleNotWritten, match="is not one that specexport wrote, so it is not a bundle"):
        replace(place)
    assert (place / MANIFEST_NAME).read_text() == manifest


def test_a_foreign_file_that_comes_during_the_build_is_kept(tmp_path: Path) -> None:
    place = make_bundle(tmp_path / "x.bundle")
    with pytest.raises(BundleNotWritten, match=r"holds 'late\.txt'"), staged_bundle(place) as root:
        (root / "file").write_text("new")
        (place / "late.txt").write_text("x")
    assert content(place) == "old" and [path.name for path in tmp_path.iterdir()] == ["x.bundle"]


def test_a_damaged_bundle_is_replaced(tmp_path: Path) -> None:
    place = make_bundle(tmp_path / "x.bundle", "ol")
    replace(place)
    assert content(place) == "new"
    (place / "target" / "graph.onnx").unlink()
    replace(place)
    assert content(place) == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["x.bundle"]


@pytest.mark.parametrize("inside", ["in", "target/in", "target", MANIFEST_NAME, "no/such/place"])
def test_a_place_inside_a_bundle_is_refused(tmp_path: Path, inside: str) -> None:
    place = make_bundle(tmp_path / "x.bundle")
    (tmp_path / "link").symlink_to(place)
    for output in (place / inside, tmp_path / "link" / inside):
        with pytest.raises(BundleNotWritten, match=r"lies inside the bundle .*x\.bundle; choose another -o"):
            check_output(output)


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_keeps_pointing_to_what_is_replaced(tmp_path: Path, exists: bool) -> None:
    place = tmp_path / "real" / "x.bundle"
    if exists:
        make_bundle(place)
    link = tmp_path / "link"
    link.symlink_to(place)
    replace(link)
    assert link.is_symlink() and link.resolve() == place and content(link) == "new"
    below = ["x.bundle", "x.bundle/manifest.json", "x.bundle/target", "x.bundle/target/graph.onnx"]
    assert tree(tmp_path / "real") == below


def loop(directory: Path) -> Path:
    (directory / "loop").symlink_to(directory / "loop")
    return directory / "loop"


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda directory: directory / "a\0b", "null byte"),
        (lambda directory: directory / ("x" * 240), "a name of 240 bytes, expected at most 231"),
        (lambda directory: directory / ("x" * 256), "File name too long"),
        (lambda directory: directory / "/".join(["x" * 200] * 30), "File name too long"),
        (lambda directory: directory / "\ud800", "surrogates not allowed"),
        (loop, "loop"),
    ],
    ids=["nul", "name", "longer name", "path", "surrogate", "loop"],
)
def test_what_can_be_no_place_is_refused_in_one_line(
    tmp_path: Path, make: Callable[[Path], Path], reason: str
) -> None:
    with pytest.raises(BundleNotWritten, match=reason) as caught:
        check_output(make(tmp_path))
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


def gone() -> int:
    """The id of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_remains_of_dead_builds_go_whatever_they_are_and_nothing_else_does(tmp_path: Path) -> None:
    elsewhere = make_bundle(tmp_path / "elsewhere")
    output, dead = make_bundle(tmp_path / "x[1].bundle"), gone()
    (tmp_path / f".{output.name}.old-{dead}").symlink_to(elsewhere)
    (tmp_path / f".{output.name}.partial-{dead}").mkdir()
    kept = [
        f".{output.name}.partial-{os.getppid()}",
        f".{output.name}.backup-{dead}",
        f".x1.bundle.old-{dead}",
    ]
    for name in kept:
        (tmp_path / name).mkdir()
    replace(output)
    assert {path.name for path in tmp_path.iterdir()} == {"elsewhere", output.name, *kept}
    assert content(elsewhere) == "old"


def test_a_build_killed_between_its_renames_gives_the_old_bundle_back(tmp_path: Path) -> None:
    make_bundle(tmp_path / f".x.bundle.old-{gone()}")
    with pytest.raises(RuntimeError), staged_bundle(tmp_path / "x.bundle"):
        raise RuntimeError("the next build fails")
    assert [path.name for path in tmp_path.iterdir()] == ["x.bundle"] and content(
        tmp_path / "x.bundle"
    ) == "old"
