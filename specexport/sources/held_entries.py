"""Which entries of the cache are in use: each is held by a shared lock on one of its files, which its remover needs.

The kernel gives a lock back when its process ends, however it does, so no entry stays held by a dead build.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path

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
    """Notes a use of the entry that the file `guard` lies in, and holds it inside `entries_held`; False: it is gone."""
    descriptor = _locked(guard, fcntl.LOCK_SH)
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
    """Whether nobody holds the entry of `guard`, nor comes to hold it inside; so too for an entry without that file."""
    try:
        descriptor = _locked(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        yield False
        return
    try:
        yield True
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _locked(guard: Path, how: int) -> int | None:
    """A descriptor of the file with the lock; None where it is not there, or went while the lock was waited for.

    Raises `BlockingIOError` where the lock is not waited for and another has it.
    """
    try:
        descriptor = os.open(guard, os.O_RDONLY)
    except OSError:
        return None
    try:
        with _without_locks():
            fcntl.flock(descriptor, how)
        if os.path.samestat(os.fstat(descriptor), guard.stat()):
            return descriptor
    except BlockingIOError:
        os.close(descriptor)
        raise
    except OSError:
        pass
    os.close(descriptor)
    return None


@contextmanager
def _without_locks() -> Iterator[None]:
    """Some network file systems know no locks: an entry there is as safe as its last use is young."""
    try:
        yield
    except BlockingIOError:
        raise
    except OSError:
        return
