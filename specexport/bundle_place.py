"""Whether a bundle may be put at a place: nothing is ever replaced but a bundle, and no file that is not a bundle's.

Judges by the names that a manifest lists, not by hashes: a damaged bundle can be replaced.
"""

import json
import os
from pathlib import Path
from typing import Any

from specexport.errors import BundleNotWritten
from specruntime.manifest import MANIFEST_NAME

_LONGEST_NAME = 255
_ROOM_FOR_SUFFIX = 24  # of the directories that a build makes beside the bundle


def check_output(output: Path) -> None:
    """Raises `BundleNotWritten` when no bundle can be put at `output`, so that a build can say so before it works."""
    try:
        _check(output, resolve_output(output))
    except (OSError, ValueError) as error:
        raise _unusable(output, error) from None


def resolve_output(output: Path) -> Path:
    """The directory that is meant: links are followed, so that what they point to is replaced and they stay.

    Raises `BundleNotWritten` for what can be no path.
    """
    try:
        resolved = output.resolve()
        resolved.lstat()
    except (FileNotFoundError, NotADirectoryError):  # what lies above it is judged by `check_output`
        return resolved
    except (OSError, ValueError, RuntimeError) as error:
        raise _unusable(output, error) from None
    return resolved


def _unusable(output: Path, error: Exception) -> BundleNotWritten:
    reason = error.strerror if isinstance(error, OSError) else error
    return BundleNotWritten(f"{str(output)[:80]!r} cannot hold a bundle: {reason}; choose another -o")


def _check(output: Path, place: Path) -> None:
    longest = _LONGEST_NAME - _ROOM_FOR_SUFFIX
    if (length := len(os.fsencode(place.name))) > longest:
        raise BundleNotWritten(
            f"{place.name[:40]}...: a name of {length} bytes, expected at most {longest}; choose another -o"
        )
    for parent in place.parents:
        if _listed_files(parent) is not None:
            raise BundleNotWritten(f"{output} lies inside the bundle {parent}; choose another -o")
    if os.path.lexists(place):
        _check_replaceable(output, place)
    above = place.parent
    while not above.exists():
        above = above.parent
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise BundleNotWritten(f"{above} is not a directory that can be written to; choose another -o")


def _check_replaceable(output: Path, place: Path) -> None:
    advice = "choose another -o or remove it"
    if not (place / MANIFEST_NAME).is_file():
        raise BundleNotWritten(
            f"{output} exists and holds no {MANIFEST_NAME}, so it is not a bundle; {advice}"
        )
    listed = _listed_files(place)
    if listed is None:
        raise BundleNotWritten(
            f"{output} exists and its {MANIFEST_NAME} is not one that specexport wrote, so it is not a bundle; {advice}"
        )
    if (foreign := _first_foreign(place, listed | {MANIFEST_NAME})) is not None:
        raise BundleNotWritten(
            f"{output} would be replaced, and holds {foreign!r}, which its {MANIFEST_NAME} does not list; "
            f"move that file away or choose another -o"
        )


def _listed_files(directory: Path) -> frozenset[str] | None:
    """The files that a bundle's manifest of any schema version lists; None where there is no such manifest."""
    try:
        document: Any = json.loads((directory / MANIFEST_NAME).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    version, producer, files = (document.get(key) for key in ("schema_version", "producer", "files"))
    ours = isinstance(producer, str) and producer.startswith("specexport ")
    if not ours or not isinstance(version, int) or not isinstance(files, dict):
        return None
    return frozenset(files)


def _first_foreign(place: Path, listed: frozenset[str]) -> str | None:
    """The first path below `place` that is neither listed nor a directory on the way to what is."""
    directories = {parent.as_posix() for name in listed for parent in Path(name).parents}

    def refuse(error: OSError) -> None:
        raise error

    for root, below, files in os.walk(place, onerror=refuse):
        here = Path(root)
        for name in sorted(files):
            if (path := (here / name).relative_to(place).as_posix()) not in listed:
                return path
        for name in sorted(below):
            path = (here / name).relative_to(place).as_posix()
            if path not in directories or (here / name).is_symlink():
                return path
    return None
