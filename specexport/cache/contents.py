"""What lies in the cache, and removing the least recently used of it. Entries that a build uses are left alone.

Only directories of known kinds are looked at: anything else in the directory does not belong to the cache.
"""

import os
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from specexport.cache.entries import (
    SEAL_NAME,
    cache_directory,
    new_scratch,
    remove_dead_scratches,
    remove_tree,
    taken,
)
from specexport.errors import SourceError
from specruntime.errors import InvalidArgument
from specruntime.inspection.memory import parse_size
from specruntime.inspection.summary import shown_size
from specruntime.manifest.schema import MANIFEST_NAME

LIMIT_VARIABLE = "SPECEXPORT_CACHE_LIMIT"
DEFAULT_LIMIT = "20GB"
KINDS = {
    "wheels": "files out of wheels, downloaded",
    "tokenizers": "tokenizers of checkpoints",
    "canonical": "traced graphs, and what PyTorch computed",
    "compiled": "graphs rewritten for a backend",
    "engines": "compiled engines",
    "timings": "what engine compilers measured",
    "parity": "differences from PyTorch",
    "fidelity": "differences from the checkpoint's own weights",
    "bundles": "bundles that LLM(model=...) built",
}
DOWNLOADED = frozenset({"wheels"})
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """`used`: seconds since the epoch at its last use; `bytes` on disk, of files it shares with others its part."""

    kind: str
    place: Path
    bytes: int
    used: float

    @property
    def name(self) -> str:
        """Below the directory of its kind."""
        return self.place.relative_to(self.place.parents[_depth(self.kind)]).as_posix()

    def as_dict(self) -> dict[str, object]:
        """JSON-ready."""
        return {
            "kind": self.kind,
            "name": self.name,
            "bytes": self.bytes,
            "used": int(self.used),
            "downloaded": self.kind in DOWNLOADED,
        }


@dataclass(frozen=True, slots=True)
class Pruned:
    """`kept` should have gone and is in use. `bytes`: what the cache holds now."""

    removed: tuple[CacheEntry, ...]
    kept: tuple[CacheEntry, ...]
    bytes: int


def cache_entries() -> list[CacheEntry]:
    """All entries, the least recently used first."""
    found = []
    for kind in KINDS:
        for place in _places(kind):
            with suppress(OSError):  # another process removed it
                found.append(CacheEntry(kind, place, _size(place), place.lstat().st_mtime))
    return sorted(found, key=lambda entry: (entry.used, entry.place))


def cache_limit() -> int | None:
    """Bytes that the cache may hold, by `$SPECEXPORT_CACHE_LIMIT`; None: any number.

    Raises `SourceError` for what is neither a size nor `none`.
    """
    text = os.environ.get(LIMIT_VARIABLE) or DEFAULT_LIMIT
    if text.strip().lower() == "none":
        return None
    try:
        return parse_size(text, LIMIT_VARIABLE)
    except InvalidArgument as error:
        raise SourceError(f"{error}, or none for no limit") from None


def prune_cache(*, older_than: float | None = None, max_bytes: int | None = None) -> Pruned:
    """Remove what was not used for `older_than` seconds, then the least recently used until `max_bytes` hold the rest.

    What a build of any process uses stays. Raises `SourceError` where the cache cannot be written.
    """
    for kind in KINDS:
        for directory in {place.parent for place in _places(kind)}:
            remove_dead_scratches(directory)
    entries = cache_entries()
    left, oldest = sum(entry.bytes for entry in entries), time.time() - (older_than or 0.0)
    removed, kept = [], []
    for entry in entries:
        too_old = older_than is not None and entry.used < oldest
        if not too_old and (max_bytes is None or left <= max_bytes):
            continue
        if _remove(entry):
            removed.append(entry)
            left -= entry.bytes
        else:
            kept.append(entry)
    return Pruned(tuple(removed), tuple(kept), left)


def parse_age(text: str, name: str) -> float:
    """Seconds of an age as people write it: `30m`, `12h`, `7d`, `2w`. Raises `InvalidArgument` with the forms."""
    match = re.fullmatch(r"\s*(\d{1,9}(?:\.\d{1,6})?)\s*([smhdw])\s*", text)
    if match is None:
        raise InvalidArgument(f"{name} is {text!r}, expected an age such as 30m, 12h, 7d or 2w")
    return float(match[1]) * _UNITS[match[2]]


def describe_entries(entries: Iterable[CacheEntry]) -> str:
    """How many, and their size."""
    listed = list(entries)
    noun = "entry" if len(listed) == 1 else "entries"
    return f"{len(listed)} {noun}, {shown_size(1e-6 * sum(entry.bytes for entry in listed))}"


def _places(kind: str) -> Iterator[Path]:
    """Where the entries of a kind lie, without scratch directories and hidden files."""
    pattern = "/".join(["[!.]*"] * _depth(kind, from_kind=True))
    yield from (cache_directory() / kind).glob(pattern)


def _depth(kind: str, *, from_kind: bool = False) -> int:
    """Directories between an entry and that of its kind: files of a wheel lie in one named after it."""
    levels = 2 if kind == "wheels" else 1
    return levels if from_kind else levels - 1


def _guard(entry: CacheEntry) -> Path:
    """Return the file whose lock says that the entry is in use."""
    if entry.kind == "timings":
        return entry.place
    return entry.place / (MANIFEST_NAME if entry.kind == "bundles" else SEAL_NAME)


def _size(place: Path) -> int:
    files = [place] if place.is_file() else [path for path in place.rglob("*") if path.is_file()]
    return sum(found.st_size // found.st_nlink for found in (file.lstat() for file in files))


def _remove(entry: CacheEntry) -> bool:
    """Out of its place in one step, so that no process finds a part of it; False where it is in use, or just was."""
    with taken(_guard(entry)) as free:
        try:
            if not free or entry.place.lstat().st_mtime > entry.used:
                return False
            discarded = new_scratch(entry.place.parent)
            entry.place.rename(discarded / entry.place.name)
        except FileNotFoundError:  # another process removed it
            return True
        except OSError as error:
            raise SourceError(f"the cache entry {entry.place} cannot be removed: {error.strerror}") from None
    remove_tree(discarded)
    with suppress(OSError):  # of a wheel of which nothing is left
        if entry.kind == "wheels":
            entry.place.parent.rmdir()
    return True
