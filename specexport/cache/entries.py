"""The cache of downloaded and converted files, and hashing.

Entries appear whole or not at all: they are written next to their final path and renamed to it. Each carries a seal
with the hashes of its files and of itself; it is checked on every use, and what is not intact is made again.

An entry in use is held by a shared lock on one of its files, which its remover needs. The kernel gives a lock back when
its process ends, however it does, so no entry stays held by a dead build.
"""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specexport.errors import SourceError
from specruntime.engines.prepacked import architecture, processor_features

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


import fcntl
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

CACHE_VARIABLE = "SPECEXPORT_CACHE"
RECORD_NAME = "record.json"
SEAL_NAME = "seal.sha256"
_CHUNK = 1 << 20
_SCRATCH = ".partial-"
# Of a scratch whose process cannot be asked: another machine's, or a name of an older version.
_STALE_SECONDS = 24 * 3600
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
_descriptors: ContextVar[list[int] | None] = ContextVar("descriptors", default=None)


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


def measured_once(
    kind: str, parts: Mapping[str, object], measure: Callable[[], "DataclassInstance"], *, force: bool
) -> dict[str, Any]:
    """Return the fields of what `measure` finds; it is called where the cache holds nothing under `parts` and this
    processor, or `force`.
    """
    # Kernels, and what they round, are chosen by it.
    processor = [architecture(), *(processor_features() or ())]
    key = text_sha256(json.dumps({**parts, "processor": processor}, sort_keys=True))
    place = cache_directory() / kind / key
    cached_entry(place, lambda directory: write_record(directory, asdict(measure())), force=force)
    return read_record(place)


def new_scratch(directory: Path) -> Path:
    """Return an empty directory of this process in `directory`, to be renamed into place; its name says whose it is, so
    that an abandoned one is recognised."""
    for number in range(1 << 16):
        scratch = directory / f"{_SCRATCH}{_machine()}-{os.getpid()}-{number}"
        try:
            scratch.mkdir(mode=0o700)
        except FileExistsError:
            continue
        return scratch
    raise FileExistsError(f"{directory} is full of unfinished entries")


def remove_dead_scratches(directory: Path) -> None:
    """Delete what killed processes left in `directory`; it need not exist."""
    for scratch in directory.glob(f"{_SCRATCH}*"):
        if _is_dead(scratch):
            remove_tree(scratch)


def is_running(pid: int) -> bool:
    """Whether a process of this machine has that id."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # it runs as another user
        return True
    return True


def remove_tree(path: Path) -> None:
    """Delete a directory, a file or a link itself, as far as the disk allows."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
        return
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return


def _is_dead(scratch: Path) -> bool:
    machine, _, rest = scratch.name.removeprefix(_SCRATCH).partition("-")
    pid = rest.partition("-")[0]
    if machine == _machine() and pid.isdigit() and not is_running(int(pid)):
        return True
    try:
        return scratch.lstat().st_mtime < time.time() - _STALE_SECONDS
    except OSError:  # its owner was faster
        return False


def _machine() -> str:
    """Process ids mean nothing on another machine that shares the directory."""
    return hashlib.sha256(platform.node().encode()).hexdigest()[:8]


@contextmanager
def entries_held() -> Iterator[None]:
    """No process removes an entry that is used inside before the outermost of these ends."""
    if _descriptors.get() is not None:
        yield
        return
    held: list[int] = []
    token = _descriptors.set(held)
    try:
        yield
    finally:
        _descriptors.reset(token)
        for descriptor in held:
            os.close(descriptor)


def hold(guard: Path) -> bool:
    """Note a use of the entry that the file `guard` lies in, and hold it inside `entries_held`; -> False if it is gone.

    So too where the file cannot be opened. Raises `SourceError` for a file that cannot be locked.
    """
    try:
        descriptor = _locked(guard, fcntl.LOCK_SH)
    except PermissionError:
        return False
    except OSError as error:
        raise SourceError(f"the cache entry {guard.parent} cannot be locked: {error.strerror}") from None
    if descriptor is None:
        return False
    with suppress(OSError):  # a cache that can only be read
        os.utime(guard.parent)
    held = _descriptors.get()
    if held is None:
        os.close(descriptor)
    else:
        held.append(descriptor)
    return True


@contextmanager
def taken(guard: Path) -> Iterator[bool]:
    """Yield True if no process holds the entry of `guard`; no process can take it inside the block.

    True too for an entry without that file. False where that cannot be known.
    """
    try:
        descriptor = _locked(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        yield False
        return
    try:
        yield True
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _locked(guard: Path, how: int) -> int | None:
    """Return a descriptor of the file with the lock; None where it is not there, or went while the lock was waited for.

    Raises `OSError` where the lock cannot be had: `BlockingIOError` where it is not waited for and another has it.
    """
    try:
        descriptor = _opened(guard, how)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        _lock(descriptor, how)
        if os.path.samestat(os.fstat(descriptor), guard.stat()):
            return descriptor
    except FileNotFoundError:
        pass
    except OSError:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _opened(guard: Path, how: int) -> int:
    """Return a descriptor that can be locked: over NFS an exclusive lock needs one open for writing."""
    if how & fcntl.LOCK_EX:
        # Another user's file may be locked by its reader, except over NFS: there the lock is then refused.
        with suppress(PermissionError):
            return os.open(guard, os.O_RDWR)
    return os.open(guard, os.O_RDONLY)


def _lock(descriptor: int, how: int) -> None:
    """Lock, where the file system has locks: on one without, an entry is as safe as its last use is recent."""
    try:
        fcntl.flock(descriptor, how)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
