"""Caller-owned memory as numpy views: what an argument of the table may be, and what is refused.

Views live for one call. Nothing here copies an array, and nothing knows what the entries do.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from specruntime.abi.structs import STRUCTURES
from specruntime.abi.table import DTYPES, Argument
from specruntime.errors import BufferTooSmall, InvalidArgument

_HOST = 1  # DLPack's kDLCPU
_STRUCTURES = {structure.name: structure.dtype for structure in STRUCTURES}


def whole(value: object, argument: Argument) -> int:
    """Return a value argument: an integer in the range of its C type. A bool counts as 0 or 1."""
    if not isinstance(value, int | np.integer | np.bool_):
        raise InvalidArgument(f"{argument.name} is of type {_kind(value)}, expected an integer")
    number, bound = int(value), 1 << (8 * DTYPES[argument.ctype].itemsize - 1)
    if not -bound <= number < bound:
        raise InvalidArgument(
            f"{argument.name} is outside {argument.ctype}, expected {-bound} to {bound - 1}"
        )
    return number


def view(pointer: object, argument: Argument, length: int | None) -> NDArray[Any] | str | None:
    """Return the memory a pointer argument names: an array [length], or the text of [in] char.

    NULL gives None for an optional structure, nothing for length 0, a scratch value for an optional result.
    Raises `InvalidArgument` for anything else than the table allows.
    """
    if length is not None and length < 0:
        raise InvalidArgument(f"{argument.length} is {length}, expected 0 or more")
    if argument.ctype in _STRUCTURES:
        return _structure(pointer, argument, length)
    if pointer is None:
        return _null(argument, length)
    count = 1 if length is None else length
    array = _text_bytes(pointer, argument) if argument.ctype == "char" else _elements(pointer, argument)
    if array.size < count:
        raise InvalidArgument(
            f"{argument.name} holds {array.size} elements, {argument.length or 'it'} says {count}"
        )
    return _text(array[:count], argument) if _is_text(argument) else array[:count]


def deliver(
    values: NDArray[Any] | list[int] | list[float], room: NDArray[Any], needed: NDArray[np.int64], name: str
) -> None:
    """Write all values and their number, or the number alone and raise `BufferTooSmall`."""
    needed[0] = len(values)
    if len(values) > room.size:
        raise BufferTooSmall(f"{name} has room for {room.size} elements, {len(values)} are needed")
    room[: len(values)] = values


def deliver_text(text: str, room: NDArray[np.uint8], needed: NDArray[np.int64]) -> None:
    """`deliver` for text: UTF-8 and a closing NUL."""
    data = text.encode("utf-8", "replace") + b"\0"
    deliver(np.frombuffer(data, np.uint8), room, needed, "text")


def _null(argument: Argument, length: int | None) -> NDArray[Any] | str:
    if length is None and argument.optional:
        return np.zeros(1, DTYPES[argument.ctype])
    if length == 0:
        return "" if _is_text(argument) else np.zeros(0, DTYPES[argument.ctype])
    raise InvalidArgument(f"{argument.name} is NULL, expected {argument.memory}")


def _structure(pointer: object, argument: Argument, size: int | None) -> NDArray[Any] | None:
    dtype = _STRUCTURES[argument.ctype]
    if pointer is None and argument.optional:
        return None
    if pointer is None:
        raise InvalidArgument(f"{argument.name} is NULL, expected a {argument.ctype}")
    if size != dtype.itemsize:
        raise InvalidArgument(
            f"{argument.length} is {size}, sizeof({argument.ctype}) of this library is {dtype.itemsize}: "
            "the caller was built against another version"
        )
    data = _raw(pointer, argument)
    if data.size < dtype.itemsize:
        raise InvalidArgument(f"{argument.name} holds {data.size} bytes, {argument.length} says {size}")
    return data[: dtype.itemsize].view(dtype)


def _elements(pointer: object, argument: Argument) -> NDArray[Any]:
    """Return the memory as a flat array of the argument's dtype."""
    array, dtype = _array(pointer, argument), DTYPES[argument.ctype]
    if array.dtype != dtype:
        raise InvalidArgument(f"{argument.name} is {array.dtype}, expected {dtype}")
    return _flat(array, argument)


def _text_bytes(pointer: object, argument: Argument) -> NDArray[np.uint8]:
    """Memory of one-byte elements, whatever their sign: C does not agree on it either."""
    array = _array(pointer, argument)
    if array.dtype.itemsize != 1:
        raise InvalidArgument(f"{argument.name} is {array.dtype}, expected bytes")
    return _flat(array, argument).view(np.uint8)


def _raw(pointer: object, argument: Argument) -> NDArray[np.uint8]:
    """Memory of any element type as bytes."""
    array = _array(pointer, argument)
    if array.dtype.hasobject:
        raise InvalidArgument(f"{argument.name} holds Python objects, expected a {argument.ctype}")
    return _flat(array, argument).view(np.uint8)


def _array(pointer: object, argument: Argument) -> NDArray[Any]:
    if isinstance(pointer, np.ndarray):
        return pointer
    try:
        device = pointer.__dlpack_device__()[0] if hasattr(pointer, "__dlpack_device__") else None
        if device == _HOST:
            return np.from_dlpack(pointer)  # type: ignore[arg-type]  # the other half of DLPack is __dlpack__
        if device is None:
            return np.asarray(memoryview(pointer))  # type: ignore[arg-type]  # anything else is the TypeError below
    except (AttributeError, TypeError, ValueError, BufferError, RuntimeError) as error:
        raise InvalidArgument(
            f"{argument.name} is of type {_kind(pointer)}, expected host memory: "
            "a numpy array, a buffer or a DLPack tensor"
        ) from error
    raise InvalidArgument(f"{argument.name} lies on a device, expected host memory: copy it first")


def _flat(array: NDArray[Any], argument: Argument) -> NDArray[Any]:
    if not array.flags.c_contiguous:
        raise InvalidArgument(f"{argument.name} is not C-contiguous: pass a contiguous copy")
    if not array.flags.aligned:
        raise InvalidArgument(f"{argument.name} is not aligned to its dtype: pass an aligned copy")
    if argument.direction == "out" and not array.flags.writeable:
        raise InvalidArgument(f"{argument.name} is read-only, expected memory to write to")
    return array.reshape(-1)


def _text(data: NDArray[np.uint8], argument: Argument) -> str:
    try:
        return data.tobytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{argument.name} is not UTF-8 at byte {error.start}") from error


def _is_text(argument: Argument) -> bool:
    return argument.ctype == "char" and argument.direction == "in"


def _kind(value: object) -> str:
    return type(value).__name__
