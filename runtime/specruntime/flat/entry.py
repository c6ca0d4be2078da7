"""Turns a function into an entry: arguments converted by its table row, exceptions into statuses and error texts.

An entry's documentation is its row of `specruntime.abi`. The function behind it gets records for handles, integers,
text, and arrays over the caller's memory, all checked; it returns nothing and raises.
"""

import threading
from collections.abc import Callable
from contextlib import nullcontext
from functools import wraps
from inspect import signature
from typing import Any

from specruntime.abi import ENTRIES, Entry
from specruntime.errors import InvalidArgument, SpecError, Status
from specruntime.flat.arguments import view, whole
from specruntime.flat.records import HANDLES, OpenEngine, Record, SessionRecord

_KINDS: dict[str, type[OpenEngine] | type[SessionRecord]] = {
    "spx_engine": OpenEngine,
    "spx_session": SessionRecord,
}


class _ThreadErrors(threading.local):
    text = ""  # of the last failed call of this thread


THREAD_ERRORS = _ThreadErrors()


def entry(function: Callable[..., None]) -> Callable[..., Status]:
    """Return the entry of the row with the function's name. It never raises."""
    row = ENTRIES[function.__name__]
    bind = signature(function).bind

    @wraps(function)
    def call(*args: object, **kwargs: object) -> Status:
        record: Record | None = None
        try:
            try:
                given = bind(*args, **kwargs).arguments
            except TypeError as error:
                raise InvalidArgument(f"{row.name}: {error}") from error
            record = _record(row, given)
            with record.entered() if record is not None else nullcontext():
                function(**_convert(row, given, record))
            return Status.OK
        except BaseException as error:  # an interrupt too: nothing crosses
            return _failed(row, record, error)

    call.__doc__ = row.purpose
    return call


def _record(row: Entry, given: dict[str, Any]) -> Record | None:
    handle = row.handle
    if handle is None:
        return None
    return HANDLES.get(whole(given[handle.name], handle), _KINDS[handle.ctype])


def _convert(row: Entry, given: dict[str, Any], record: Record | None) -> dict[str, Any]:
    """Return the arguments as the function takes them."""
    values = {a.name: whole(given[a.name], a) for a in row.arguments if not a.pointer and a is not row.handle}
    converted: dict[str, Any] = dict(values)
    if row.handle is not None:
        converted[row.handle.name] = record
    for argument in row.pointers:
        length = None if argument.length is None else values[argument.length]
        converted[argument.name] = view(given[argument.name], argument, length)
    return converted


def _failed(row: Entry, record: Record | None, error: BaseException) -> Status:
    """Return the status of an exception; its text is kept for `spx_last_error`, which leaves the texts as they are."""
    status, text = _status(error), _text(error)
    if row.name != "spx_last_error":
        THREAD_ERRORS.text = text
        if record is not None and status is not Status.SESSION_BUSY:
            record.error = text
    return status


def _status(error: BaseException) -> Status:
    if isinstance(error, SpecError):
        return error.status
    return Status.OUT_OF_MEMORY if isinstance(error, MemoryError) else Status.INTERNAL


def _text(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # the argument's own doing
        text = ""
    return text if isinstance(error, SpecError) else f"{type(error).__name__}: {text}"
