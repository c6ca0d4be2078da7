"""Status codes and the exceptions that carry them.

    SpecError
    ├── InvalidArgument        a value, dtype, shape or option the call does not take
    │   ├── ConstraintInvalid  the form asked of an answer makes no sense, or allows no answer
    │   │   └── ConstraintTooLarge  it exceeds a limit of size, depth or time
    │   └── DeadEnd            nothing can follow in an answer: all is banned, or its form has come to an end
    ├── InvalidHandle          a handle that was never opened or is closed
    ├── BufferTooSmall         a caller-owned buffer cannot hold the result
    ├── BundleInvalid          a bundle file is missing, malformed or points outside the bundle
    ├── BundleHashMismatch     a bundle file's bytes differ from the manifest
    ├── BundleTooNew           the bundle was written by a newer schema
    ├── BackendMissing         the library that runs the engine is not installed
    ├── BackendIncompatible    the library, driver or device cannot load this engine
    ├── CapacityExceeded       more tokens than the bundle's KV capacity
    ├── EmptyPrompt            nothing to decode from
    ├── WrongState             the call does not fit the session's state
    ├── SessionBusy            the session is in use by another thread
    ├── SessionPoisoned        an engine call failed in this session; reset or close it
    ├── EngineFailed           the engine reported an error while running
    └── OutOfMemory            a buffer could not be allocated

The numbers are part of the C ABI: they are never reused or renumbered.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import ClassVar


class Status(IntEnum):
    """Return value of every `spx_` entry."""

    OK = 0
    INVALID_ARGUMENT = 1
    INVALID_HANDLE = 2
    BUFFER_TOO_SMALL = 3
    BUNDLE_INVALID = 4
    BUNDLE_HASH_MISMATCH = 5
    BUNDLE_TOO_NEW = 6
    BACKEND_MISSING = 7
    BACKEND_INCOMPATIBLE = 8
    CAPACITY_EXCEEDED = 9
    WIDTH_EXCEEDED = 10  # reserved: no longer raised
    EMPTY_PROMPT = 11
    WRONG_STATE = 12
    SESSION_BUSY = 13
    SESSION_POISONED = 14
    ENGINE_FAILED = 15
    OUT_OF_MEMORY = 16
    INTERNAL = 17


class SpecError(Exception):
    """Base of every error this package raises; `status` is what the flat API returns for it."""

    status: ClassVar[Status] = Status.INTERNAL


class InvalidArgument(SpecError, ValueError):
    status = Status.INVALID_ARGUMENT


class ConstraintInvalid(InvalidArgument): ...


class ConstraintTooLarge(ConstraintInvalid): ...


class DeadEnd(InvalidArgument): ...


class InvalidHandle(SpecError):
    status = Status.INVALID_HANDLE


class BufferTooSmall(SpecError):
    status = Status.BUFFER_TOO_SMALL


class BundleInvalid(SpecError):
    status = Status.BUNDLE_INVALID


class BundleHashMismatch(BundleInvalid):
    status = Status.BUNDLE_HASH_MISMATCH


class BundleTooNew(BundleInvalid):
    status = Status.BUNDLE_TOO_NEW


class BackendMissing(SpecError):
    status = Status.BACKEND_MISSING


class BackendIncompatible(SpecError):
    status = Status.BACKEND_INCOMPATIBLE


class CapacityExceeded(SpecError):
    status = Status.CAPACITY_EXCEEDED


class EmptyPrompt(SpecError):
    status = Status.EMPTY_PROMPT


class WrongState(SpecError):
    status = Status.WRONG_STATE


class SessionBusy(SpecError):
    status = Status.SESSION_BUSY


class SessionPoisoned(SpecError):
    status = Status.SESSION_POISONED


class EngineFailed(SpecError):
    status = Status.ENGINE_FAILED


class OutOfMemory(SpecError, MemoryError):
    status = Status.OUT_OF_MEMORY


@contextmanager
def memory_named(purpose: str) -> Iterator[None]:
    """Python's own `MemoryError`, which names nothing, as `OutOfMemory`."""
    try:
        yield
    except SpecError:
        raise
    except MemoryError as error:
        raise OutOfMemory(
            f"no memory to {purpose}: close other programs, or raise the limit of this one"
        ) from error
