"""Which entries of the cache are in use: each is held by a shared lock on one of its files, which its remover needs.

The kernel gives a lock back when its process ends, however it does, so no entry stays held by a dead build.
"""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path

from specexport.errors import SourceError

_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
_descriptors: ContextVar[list[int] | None] = ContextVar("descriptors", default=None)


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
