"""The cache of downloaded and converted files, and hashing.

Entries appear whole or not at all: they are written next to their final path and renamed to it. Each carries a seal
with the hashes of its files and of itself; it is checked on every use, and what is not intact is made again.
"""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from specexport.cache.held_entries import hold
from specexport.cache.scratch import new_scratch, remove_dead_scratches, remove_tree
from specexport.errors import SourceError

CACHE_VARIABLE = "SPECEXPORT_CACHE"
RECORD_NAME = "record.json"
SEAL_NAME = "seal.sha256"
_CHUNK = 1 << 20


def cache_directory() -> Path:
    """`$SPECEXPORT_CACHE`, or `~/.cache/specexport` (under `$XDG_CACHE_HOME` where that is set)."""
    if chosen := os.environ.get(CACHE_VARIABLE):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specexport"


def is_intact(place: Path) -> bool:
    """Whether a cached entry holds the files it was written with, to the byte, and no others."""
    try:
        return (place / SEAL_NAME).read_text() == _seal_text(place)
    except (OSError, ValueError):
        return False


def cached_entry(
    place: Path,
    fill: Callable[[Path], None],
    *,
    force: bool = False,
    intact: Callable[[Path], bool] = is_intact,
) -> Path:
    """`place`, made by `fill(temporary directory)` unless it is there and `intact`; always with `force`.

    Two builds at once both succeed; one copy stays, and is not removed within `entries_held`. Raises `SourceError` when
    the cache cannot be written.
    """
    try:
        remove_dead_scratches(place.parent)
        if not force and hold(place / SEAL_NAME) and intact(place):
            return place
        place.parent.mkdir(parents=True, exist_ok=True)
        scratch = new_scratch(place.parent)
    except OSError as error:
        raise SourceError(_describe_failure(place.parent, error)) from None
    try:
        fill(scratch)
        (scratch / SEAL_NAME).write_text(_seal_text(scratch))
        hold(scratch / SEAL_NAME)  # it is in use before it is in its place
        _move_into(scratch, place, replace=lambda: force or not intact(place))
    except OSError as error:
        raise SourceError(_describe_failure(place.parent, error)) from None
    finally:
        remove_tree(scratch)
    hold(place / SEAL_NAME)  # another build may have been first
    return place


def entry_digest(place: Path) -> str:
    """Hex SHA-256 of an intact entry: another for other bytes in any of its files."""
    return file_sha256(place / SEAL_NAME)


def write_record(directory: Path, record: Mapping[str, Any]) -> None:
    """Store metadata with an entry, for `read_record`."""
    (directory / RECORD_NAME).write_text(json.dumps(record, indent=1))


def read_record(place: Path) -> dict[str, Any]:
    """Return what `write_record` wrote into an entry that is intact."""
    record: dict[str, Any] = json.loads((place / RECORD_NAME).read_text())
    return record


def is_disk_full(error: OSError, directory: Path) -> bool:
    """numpy reports a write that was cut short without an error number, so the disk itself is asked as well."""
    if error.errno is not None:
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return free_megabytes(directory) < 1 or "writ" in str(error)


def free_megabytes(directory: Path) -> int:
    """Space on the disk of a directory that may not exist yet."""
    while not directory.exists() and directory != directory.parent:
        directory = directory.parent
    return shutil.disk_usage(directory).free // 2**20


def file_sha256(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def text_sha256(text: str) -> str:
    """Hex SHA-256 of a text's UTF-8 bytes."""
    return hashlib.sha256(text.encode()).hexdigest()


def _seal_text(directory: Path) -> str:
    """Return a line per file, and a last one with the hash of those lines, so that a truncated seal is invalid."""
    paths = sorted(path for path in directory.rglob("*") if not path.is_dir())
    names = {path.relative_to(directory).as_posix(): path for path in paths}
    lines = "".join(f"{file_sha256(path)}  {name}\n" for name, path in names.items() if name != SEAL_NAME)
    return f"{lines}{text_sha256(lines)}\n"


def _move_into(scratch: Path, place: Path, replace: Callable[[], bool]) -> None:
    """Rename; an entry already there goes only if `replace` says so: otherwise another build was first."""
    if os.path.lexists(place):
        if not replace():
            return
        discarded = new_scratch(place.parent)
        try:
            with suppress(FileNotFoundError):  # another build did the same
                place.rename(discarded / place.name)
        finally:
            remove_tree(discarded)
    try:
        scratch.rename(place)
    except OSError:
        if not place.exists():
            raise


def _describe_failure(directory: Path, error: OSError) -> str:
    if is_disk_full(error, directory):
        free = free_megabytes(directory)
        return f"disk full: {free} MB are free for the cache {directory}; free space there or set {CACHE_VARIABLE}"
    reason = f"{error.filename}: {error.strerror}" if error.filename else str(error)
    return f"the cache {directory} cannot be written ({reason}); free space there or set {CACHE_VARIABLE}"
