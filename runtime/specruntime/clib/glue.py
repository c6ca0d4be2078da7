"""What an entry does when C calls it: memory by address becomes numpy views, and the entry of `specruntime.flat` runs.

Views live for one call. Owns the step from addresses to arrays; every check is the entry's own.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specruntime import flat
from specruntime.abi import ENTRIES, Argument, Entry, Status
from specruntime.abi.table import DTYPES

_FARTHEST = 2**47  # bytes: more than an address space has


def take_over(ffi: Any) -> None:
    """Make every entry that the library exports call its function."""
    for entry in ENTRIES.values():
        error = Status.INTERNAL if entry.returns == "spx_status" else -1
        ffi.def_extern(name=entry.name, error=int(error))(_called(ffi, entry))


def _called(ffi: Any, entry: Entry) -> Callable[..., int]:
    function = getattr(flat, entry.name)
    names = [argument.name for argument in entry.arguments]

    def call(*given: Any) -> int:
        values = dict(zip(names, given, strict=True))
        arrays = {
            argument.name: _memory(ffi, argument, values) for argument in entry.arguments if argument.pointer
        }
        return int(function(**(values | arrays)))

    return call


def _memory(ffi: Any, argument: Argument, values: dict[str, Any]) -> NDArray[Any] | None:
    """Return the memory that a pointer names, as long as its length argument says; None for NULL.

    A length that no memory has is left to the entry, which refuses it: then the array is empty.
    """
    pointer = values[argument.name]
    if pointer == ffi.NULL:
        return None
    count = 1 if argument.length is None else values[argument.length]
    structure = argument.ctype not in DTYPES  # its length is in bytes
    dtype: np.dtype[Any] = np.dtype(np.uint8) if structure else DTYPES[argument.ctype]
    size = count * dtype.itemsize
    if not 0 < size < _FARTHEST:
        return np.zeros(0, dtype)
    return np.frombuffer(ffi.buffer(pointer, size), dtype)
