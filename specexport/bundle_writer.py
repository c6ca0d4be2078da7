"""Puts a bundle in place: everything is written beside the destination, then renamed over it.

An interrupted build leaves the old bundle or none. Remains of a killed build are removed by the next one.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from specexport.bundle_place import check_output, resolve_output
from specexport.errors import BundleNotWritten
from specexport.sources.cache import file_sha256, free_megabytes, is_disk_full
from specexport.sources.scratch import is_running, remove_tree
from specruntime.manifest import MANIFEST_NAME, FileRecord, Manifest

BUILD_RECORD_NAME = "build.json"


@contextmanager
def staged_bundle(output: Path) -> Iterator[Path]:
    """A directory to write into; it becomes `output` when the block ends well and vanishes when it does not.

    Where `output` is a link, what it points to is replaced. Raises `BundleNotWritten` when `output` holds something
    that is not a bundle, or when the disk refuses.
    """
    check_output(output)
    output = resolve_output(output)
    staging = output.parent / f".{output.name}.partial-{os.getpid()}"
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        _clear_remains(output)
        staging.mkdir()
        yield staging
        for directory in (path for path in staging.rglob("*") if path.is_dir()):
            directory.chmod(staging.stat().st_mode)  # the cache's own directories may be private
        _swap(staging, output)
    except OSError as error:
        raise BundleNotWritten(_describe_failure(output, error)) from error
    finally:
        remove_tree(staging)


def _clear_remains(output: Path) -> None:
    """Of builds whose process is gone. The old bundle of one that died between its two renames goes back."""
    remains = re.compile(rf"\.{re.escape(output.name)}\.(partial|old)-(\d+)")
    for path in sorted(output.parent.iterdir()):
        match = remains.fullmatch(path.name)
        if match is None or is_running(int(match[2])):
            continue
        if match[1] == "old" and not output.exists() and not path.is_symlink():
            path.rename(output)
        else:
            remove_tree(path)


def _swap(staging: Path, output: Path) -> None:
    check_output(output)  # a file may have come since the build began
    if not output.exists():
        staging.rename(output)
        return
    old = output.parent / f".{output.name}.old-{os.getpid()}"
    output.rename(old)
    try:
        staging.rename(output)
    except OSError:
        old.rename(output)
        raise
    remove_tree(old)


def _describe_failure(output: Path, error: OSError) -> str:
    if is_disk_full(error, output.parent):
        free = free_megabytes(output.parent)
        return f"the disk of {output} is full ({free} MB free): free space or choose another -o; nothing was written"
    return f"the bundle {output} cannot be written: {error.strerror or error}; nothing was written"


def record_files(root: Path) -> dict[str, FileRecord]:
    """Hash and size of every file under `root`, by relative path."""
    paths = sorted(path for path in root.rglob("*") if path.is_file() and path.name != MANIFEST_NAME)
    return {
        path.relative_to(root).as_posix(): FileRecord(sha256=file_sha256(path), bytes=path.stat().st_size)
        for path in paths
    }


def write_build_record(root: Path, record: Mapping[str, object]) -> None:
    """`build.json`: versions, hashes, parity numbers and step times; nothing a runtime needs."""
    (root / BUILD_RECORD_NAME).write_text(json.dumps(record, indent=1) + "\n")


def write_manifest(root: Path, manifest: Manifest) -> None:
    """Written last: a directory without it is no bundle."""
    (root / MANIFEST_NAME).write_text(manifest.model_dump_json(indent=1) + "\n")
