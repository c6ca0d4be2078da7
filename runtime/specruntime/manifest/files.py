"""The files of a bundle: where a manifest's paths may point, and whether the bytes are those the manifest names.

Reads files, never writes. Knows paths, sizes and hashes, not what a file means.
"""

import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from io import BufferedReader
from pathlib import Path, PurePosixPath, PureWindowsPath

from specruntime.errors import BundleHashMismatch, BundleInvalid
from specruntime.manifest.refusals import REBUILD
from specruntime.manifest.schema import MANIFEST_NAME, FileRecord

_CHUNK = 1 << 20


@dataclass(frozen=True)
class Ending:
    """The last bytes of a file, which are not parsed, and the digest of all before them."""

    bytes: int
    sha256_before: str


def confine(root: Path, name: str) -> Path:
    """Return the path of the bundle file `name` under `root`.

    Raises `BundleInvalid` when the name is absolute, climbs out with `..` or a drive, leads out of the bundle
    through a symbolic link, or cannot be shown on one line. Links that stay inside are followed.
    """
    pure = PurePosixPath(name)
    if (
        pure.is_absolute()
        or PureWindowsPath(name).drive
        or "\\" in name
        or "\0" in name
        or ".." in pure.parts
        or not name.isprintable()
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


def read_regular(root: Path, name: str, limit: int) -> bytes:
    """Return the bytes of the bundle file `name`, at most `limit` of them.

    Raises `BundleInvalid` for a link out of the bundle, a pipe, device or directory (without waiting on it), a larger
    file and one that cannot be read; `FileNotFoundError` for a missing one.
    """
    path = confine(root, name)
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise BundleInvalid(f"{name} cannot be read: it is not a regular file; {REBUILD}")
        with path.open("rb") as file:
            content = file.read(min(limit, status.st_size) + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise BundleInvalid(f"{name} cannot be read: {error.strerror}; {REBUILD}") from error
    if len(content) > limit:
        raise BundleInvalid(f"{name} has {status.st_size} bytes, expected at most {limit}; {REBUILD}")
    return content


def check_files(
    root: Path, files: Mapping[str, FileRecord], *, hashes: bool, endings: Mapping[str, Ending] | None = None
) -> Callable[[], None]:
    """Check that each file is there with its size, with `hashes` that its bytes are the recorded ones, and that no
    other file lies in the bundle.

    Hashing reads every byte (about 0.7 s per GB once cached). Raises `BundleInvalid` for a path that escapes, a
    missing, unreadable, truncated or unlisted file, and `BundleHashMismatch` for other bytes. What it returns is still
    to be called, by any thread: it hashes the `endings` of files, by name, and raises for them alone.
    """
    paths: dict[str, Path] = {}
    for name, record in files.items():
        paths[name] = confine(root, name)
        _check_size(paths[name], name, record)
    _refuse_unlisted(root, {path.resolve() for path in paths.values()})
    rest = []
    for name, record in files.items() if hashes else ():
        if (ending := (endings or {}).get(name)) is None:
            _check_hash(paths[name], name, record)
        else:
            rest.append(_check_before(paths[name], name, record, ending))

    def check_rest() -> None:
        for check in rest:
            check()

    return check_rest


def _refuse_unlisted(root: Path, listed: set[Path]) -> None:
    """Refuse files that are not listed: an engine may read any file next to its graph, so all of them must be checked.

    A link counts as what it leads to, so that a listed name may be a link to a file under another name.
    """
    for path in _entries(root):
        name = path.relative_to(root).as_posix()
        if name != MANIFEST_NAME and path.resolve() not in listed:
            raise BundleInvalid(
                f"{name!r} is in the bundle but has no entry under 'files' of {MANIFEST_NAME}, so its bytes cannot be "
                "checked; move it out of the bundle"
            )


def _entries(root: Path) -> Iterator[Path]:
    """Everything under `root` but directories; a link to a directory is not entered and must not lead out."""

    def fail(error: OSError) -> None:
        raise BundleInvalid(f"{error.filename} cannot be listed: {error.strerror}; {REBUILD}") from error

    for directory, inner, names in os.walk(root, onerror=fail):
        for name in inner:
            if (link := Path(directory, name)).is_symlink():
                confine(root, link.relative_to(root).as_posix())
        for name in sorted(names):
            yield Path(directory, name)


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
        state = "truncated" if status.st_size < record.bytes else "larger than recorded"
        raise BundleInvalid(
            f"{name} is {state}: found {status.st_size} bytes, the manifest says {record.bytes}; {REBUILD}"
        )


def _check_hash(path: Path, name: str, record: FileRecord) -> None:
    with _opened(path, name) as file:
        _require_digest(name, hashlib.file_digest(file, "sha256").hexdigest(), record.sha256)


def _check_before(path: Path, name: str, record: FileRecord, ending: Ending) -> Callable[[], None]:
    """Check all before the ending; what is returned goes on from there to the digest of the whole file."""
    start, begun = record.bytes - ending.bytes, hashlib.sha256()
    with _opened(path, name) as file:
        _hash_on(begun, file, start)
    _require_digest(name, begun.hexdigest(), ending.sha256_before)
    return partial(_check_ending, path, name, record, begun, start)


def _check_ending(path: Path, name: str, record: FileRecord, begun: "hashlib._Hash", start: int) -> None:
    whole = begun.copy()
    with _opened(path, name) as file:
        file.seek(start)
        _hash_on(whole, file, record.bytes - start)
    _require_digest(name, whole.hexdigest(), record.sha256)


def _hash_on(digest: "hashlib._Hash", file: BufferedReader, count: int) -> None:
    while count > 0 and (chunk := file.read(min(count, _CHUNK))):
        digest.update(chunk)
        count -= len(chunk)


@contextmanager
def _opened(path: Path, name: str) -> Iterator[BufferedReader]:
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise BundleInvalid(f"{name} cannot be read: {error.strerror}; {REBUILD}") from error


def _require_digest(name: str, found: str, expected: str) -> None:
    if found != expected:
        raise BundleHashMismatch(
            f"{name} was modified after the build: found sha256 {found}, the manifest says "
            f"{expected}; {REBUILD}"
        )
