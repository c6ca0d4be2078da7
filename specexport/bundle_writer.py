"""Puts a bundle in place: everything is written beside the destination, then renamed over it.

An interrupted build leaves the old bundle or none. Remains of a killed build are removed by the next one.
"""

import errno
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from specexport.errors import BundleNotWritten
from specexport.sources.cache import file_sha256
from specruntime.manifest import MANIFEST_NAME, FileRecord, Manifest

BUILD_RECORD_NAME = "build.json"


@contextmanager
def staged_bundle(output: Path) -> Iterator[Path]:
    """A directory to write into; it becomes `output` when the block ends well and vanishes when it does not.

    Raises `BundleNotWritten` when `output` holds something that is not a bundle, or when the disk refuses.
    """
    output = output.absolute()
    check_output(output)
    staging = output.parent / f".{output.name}.partial-{os.getpid()}"
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(output)
        staging.mkdir()
        yield staging
        for directory in (path for path in staging.rglob("*") if path.is_dir()):
            directory.chmod(staging.stat().st_mode)  # the cache's own directories may be private
        _swap(staging, output)
    except OSError as error:
        raise BundleNotWritten(_describe_failure(output, error)) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def check_output(output: Path) -> None:
    """Raises `BundleNotWritten` when no bundle can be put at `output`, so that a build can say so before it works."""
    if output.exists() and not (output / MANIFEST_NAME).is_file():
        raise BundleNotWritten(
            f"{output} exists and holds no {MANIFEST_NAME}, so it is not a bundle; choose another -o or remove it"
        )
    above = output.absolute().parent
    while not above.exists():
        above = above.parent
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise BundleNotWritten(f"{above} is not a directory that can be written to; choose another -o")


def _remove_stale(output: Path) -> None:
    """Remains of builds whose process is gone."""
    for path in output.parent.glob(f".{output.name}.*-*"):
        owner = path.name.rsplit("-", 1)[1]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            shutil.rmtree(path, ignore_errors=True)


def _swap(staging: Path, output: Path) -> None:
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
    shutil.rmtree(old, ignore_errors=True)


def _describe_failure(output: Path, error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        free = shutil.disk_usage(output.parent).free // 2**20
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
