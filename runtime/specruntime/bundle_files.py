"""The files of a bundle: where a manifest's paths may point, and whether the bytes are those the manifest names.

Reads files, never writes. Knows paths, sizes and hashes, not what a file means.
"""

import hashlib
import stat
from collections.abc import Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath

from specruntime.errors import BundleHashMismatch, BundleInvalid
from specruntime.manifest import FileRecord

REBUILD = "copy the bundle again or build it again"


def confine(root: Path, name: str) -> Path:
    """The path of the bundle file `name` under `root`.

    Raises `BundleInvalid` when the name is absolute, climbs out with `..` or a drive, or leads out of the bundle
    through a symbolic link. Links that stay inside are followed.
    """
    pure = PurePosixPath(name)
    if (
        pure.is_absolute()
        or PureWindowsPath(name).drive
        or "\\" in name
        or "\0" in name
        or ".." in pure.parts
    ):
        raise BundleInvalid(
            f"the manifest names {name!r}, which is not a plain relative path; a bundle only refers to files "
            "inside itself"
        )
    path = root / pure
    try:
        inside = path.resolve().is_relative_to(root.resolve())
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links
        raise BundleInvalid(f"{name!r} cannot be resolved: {error}; {REBUILD}") from error
    if not inside:
        raise BundleInvalid(
            f"{name!r} is a link to {path.resolve()}, outside the bundle; put the file itself into the bundle"
        )
    return path


def check_files(root: Path, files: Mapping[str, FileRecord], *, hashes: bool) -> None:
    """Checks that each file is there with its size, and with `hashes` that its bytes are the recorded ones.

    Hashing reads every byte (about 0.7 s per GB once cached). Raises `BundleInvalid` for a path that escapes, a
    missing, unreadable or truncated file, and `BundleHashMismatch` for other bytes.
    """
    for name, record in files.items():
        path = confine(root, name)
        _check_size(path, name, record)
        if hashes:
            _check_hash(path, name, record)


def _check_size(path: Path, name: str, record: FileRecord) -> None:
    try:
        status = path.stat()
    except FileNotFoundError as error:
        raise BundleInvalid(f"{name} is missing from the bundle; {REBUILD}") from error
    except OSError as error:
        raise BundleInvalid(f"{name} cannot be read: {error.strerror}; {REBUILD}") from error
    if not stat.S_ISREG(status.st_mode):
        raise BundleInvalid(f"{name} is not a regular file; {REBUILD}")
    if status.st_size != record.bytes:
        state = "truncated" if status.st_size < record.bytes else "longer than it was"
        raise BundleInvalid(
            f"{name} is {state}: found {status.st_size} bytes, the manifest says {record.bytes}; {REBUILD}"
        )


def _check_hash(path: Path, name: str, record: FileRecord) -> None:
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise BundleInvalid(f"{name} cannot be read: {error.strerror}; {REBUILD}") from error
    if found != record.sha256:
        raise BundleHashMismatch(
            f"{name} has other bytes than it was built with: found sha256 {found}, the manifest says "
            f"{record.sha256}; {REBUILD}"
        )
