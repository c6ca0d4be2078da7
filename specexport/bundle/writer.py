"""Puts a bundle in place, unless the one there is up to date: what its recipe would build now.

Everything is written next to the destination, then renamed over it. An interrupted build leaves the old bundle or none.
Remains of a killed build are removed by the next one. Imports no torch, and loads no checkpoint.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from specexport.backends import backend_of
from specexport.cache.code_digest import code_digest
from specexport.cache.entries import (
    cache_directory,
    file_sha256,
    free_megabytes,
    hold,
    is_disk_full,
    is_running,
    remove_tree,
    text_sha256,
)
from specexport.errors import BundleNotWritten
from specexport.recipe.schema import Recipe
from specruntime.bundle import load_manifest
from specruntime.errors import SpecError
from specruntime.manifest.schema import MANIFEST_NAME, FileRecord, Manifest

_LONGEST_NAME = 255
_ROOM_FOR_SUFFIX = 24  # of the directories that a build makes next to the bundle
BUILD_RECORD_NAME = "build.json"
LIBRARIES = (
    "specexport",
    "specruntime",
    "torch",
    "transformers",
    "onnx",
    "onnx-ir",
    "onnxscript",
    "onnxruntime",
    "optimum",
)


def check_output(output: Path) -> None:
    """Raise `BundleNotWritten` when no bundle can be put at `output`, so that a build can say so before it works."""
    try:
        _check(output, resolve_output(output))
    except (OSError, ValueError) as error:
        raise _unusable(output, error) from None


def resolve_output(output: Path) -> Path:
    """Return the directory that is meant: links are followed, so that what they point to is replaced and they stay.

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
    """Return the files that a bundle's manifest of any schema version lists; None without a valid manifest."""
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
    """Return the first path below `place` that is neither listed nor a directory on the way to what is."""
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


@contextmanager
def staged_bundle(output: Path) -> Iterator[Path]:
    """Yield a directory to write into; it becomes `output` when the block ends well and vanishes when it does not.

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
    """Remove what is left of builds whose process is gone. The old bundle of one that died between its two renames
    goes back.
    """
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
    """Written last: a directory without it is not a bundle."""
    (root / MANIFEST_NAME).write_text(manifest.model_dump_json(indent=1) + "\n")


def default_output(recipe: Recipe) -> Path:
    """Return the default output directory of a recipe: `./<recipe name>.bundle`."""
    return Path(f"{recipe.name}.bundle")


def build_key(recipe: Recipe, digests: Mapping[str, str]) -> str:
    """Return the digest of everything that decides the bundle: recipe, checkpoints (`checkpoint_digests`), code and
    libraries, and the processor where weights are packed for it."""
    backend = backend_of(recipe.backend)
    libraries = [f"{name} {_version(name)}" for name in (*LIBRARIES, *backend.libraries(recipe))]
    written = [recipe.model_dump_json(), *recipe.left_to_checkpoint]
    parts = [
        *written,
        code_digest("specexport.build", type(recipe.draft).__module__, type(backend).__module__),
        *digests.values(),
        *libraries,
        *backend.processor(),
    ]
    return text_sha256("|".join(parts))


def is_in_use(output: Path, root: Path) -> bool:
    """Hold the bundle in `root` where `output`, its place, lies in the cache; False without such a bundle."""
    cached = cache_directory().resolve() in output.resolve().parents
    return not cached or hold(root / MANIFEST_NAME)


def is_current(output: Path, key: str) -> bool:
    """Whether `output` is an intact bundle that was built from the same inputs."""
    try:
        load_manifest(output)
        record = json.loads((output / BUILD_RECORD_NAME).read_text())
    except (SpecError, OSError, ValueError):
        return False
    return isinstance(record, dict) and record.get("key") == key


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "none"
