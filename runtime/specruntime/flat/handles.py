"""Open handles: which number stands for which engine or session. Numbers are never used twice; 0 is none."""

from contextlib import AbstractContextManager
from itertools import count
from threading import Lock
from typing import Protocol, TypeVar

from specruntime.errors import InvalidHandle


class Record(Protocol):
    """What a handle stands for."""

    error: str  # text of the last failed call on it

    def entered(self) -> AbstractContextManager[None]:
        """Held during each call on the handle; raises `SessionBusy` or `InvalidHandle`."""
        ...


R = TypeVar("R", bound=Record)


class Handles:
    """The table of open handles of one process. May be used from any thread."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._records: dict[int, Record] = {}
        self._lock = Lock()

    def add(self, record: Record) -> int:
        """A new handle for the record."""
        with self._lock:
            handle = next(self._numbers)
            self._records[handle] = record
        return handle

    def get(self, handle: int, kind: type[R]) -> R:
        """The record of an open handle; raises `InvalidHandle` for any other number."""
        record = self.find(handle)
        if not isinstance(record, kind):
            raise InvalidHandle(
                f"{handle} is no open handle of this kind: it was never opened, or it is closed"
            )
        return record

    def find(self, handle: int) -> Record | None:
        """The record of an open handle of any kind."""
        with self._lock:
            return self._records.get(handle)

    def holds(self, record: Record) -> bool:
        """Whether some open handle stands for the record."""
        with self._lock:
            return any(kept is record for kept in self._records.values())

    def drop(self, record: Record) -> None:
        """Makes the record's handle invalid."""
        with self._lock:
            self._records = {handle: kept for handle, kept in self._records.items() if kept is not record}


HANDLES = Handles()
