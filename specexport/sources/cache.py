"""The cache of downloaded and converted files, and hashing.

Entries appear whole or not at all: they are written beside their place and renamed into it.
"""

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from specexport.errors import SourceError

CACHE_VARIABLE = "SPECEXPORT_CACHE"
_CHUNK = 1 << 20
_SCRATCH_PREFIX = ".partial-"
_STALE_SECONDS = 24 * 3600


def cache_directory() -> Path:
    """`$SPECEXPORT_CACHE`, or `~/.cache/specexport` (under `$XDG_CACHE_HOME` where that is set)."""
    if chosen := os.environ.get(CACHE_VARIABLE):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specexport"


def cached_entry(place: Path, fill: Callable[[Path], None]) -> Path:
    """`place`, made by `fill(temporary directory)` on first use. Two builds at once both succeed; one copy stays.

    Raises `SourceError` when the cache cannot be written.
    """
    if place.exists():
        return place
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(place.parent)
        scratch = Path(tempfile.mkdtemp(prefix=_SCRATCH_PREFIX, dir=place.parent))
    except OSError as error:
        raise SourceError(
            f"the cache {place.parent} cannot be written ({error}); set {CACHE_VARIABLE}"
        ) from None
    try:
        fill(scratch)
        _move_into(scratch, place)
    except OSError as error:
        raise SourceError(
            f"the cache {place.parent} cannot be written ({error}); free space there or set {CACHE_VARIABLE}"
        ) from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return place


def _move_into(scratch: Path, place: Path) -> None:
    try:
        scratch.rename(place)
    except OSError:
        if not place.exists():  # otherwise another build was first
            raise


def _remove_stale(directory: Path) -> None:
    """Deletes what killed builds left behind; a younger one may still be at work."""
    for scratch in directory.glob(f"{_SCRATCH_PREFIX}*"):
        if scratch.stat().st_mtime < time.time() - _STALE_SECONDS:
            shutil.rmtree(scratch, ignore_errors=True)


def discard_entry(place: Path) -> None:
    """Removes a cached entry, if there is one; `SourceError` when the disk refuses."""
    try:
        if place.exists():
            shutil.rmtree(place)
    except OSError as error:
        raise SourceError(
            f"the cached {place} cannot be removed ({error}); remove it and build again"
        ) from None


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
