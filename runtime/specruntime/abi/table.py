"""What the ABI table is made of: entries, arguments, structures, enumerations, and the state a status leaves.

The table is executable: `specruntime.flat` converts and checks arguments by it, the C header and the reference are
generated from it. Knows C spellings and numpy dtypes, and nothing of what the entries do.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from specruntime.abi.enums import SessionState
from specruntime.errors import Status

# C spelling -> dtype of the memory, for everything but structures. Handles are integers.
DTYPES: Mapping[str, np.dtype[np.generic]] = {
    "char": np.dtype(np.uint8),
    "int32_t": np.dtype(np.int32),
    "int64_t": np.dtype(np.int64),
    "uint64_t": np.dtype(np.uint64),
    "double": np.dtype(np.float64),
    "spx_engine": np.dtype(np.int64),
    "spx_session": np.dtype(np.int64),
}
ANY_STATE = tuple(state for state in SessionState if state is not SessionState.CLOSED)
HANDLES = ("spx_engine", "spx_session")


@dataclass(frozen=True, slots=True)
class Field:
    """One member of a structure; `count` makes it an array (of char: text padded with NUL)."""

    name: str
    ctype: str
    doc: str
    default: int | float = 0
    count: int = 1


@dataclass(frozen=True, slots=True)
class Structure:
    """Plain data of fixed layout: no pointers, no implicit padding."""

    name: str
    doc: str
    fields: tuple[Field, ...]

    @property
    def dtype(self) -> np.dtype[np.void]:
        """The numpy dtype with C's layout; char arrays are bytes of fixed length."""
        members = [(f.name, f"S{f.count}" if f.ctype == "char" else DTYPES[f.ctype].str) for f in self.fields]
        return np.dtype(members, align=True)

    def defaults(self) -> NDArray[np.void]:
        """[1] the structure with every field at its default."""
        filled = np.zeros(1, self.dtype)
        for member in self.fields:
            if member.ctype != "char":
                filled[member.name] = member.default
        return filled


@dataclass(frozen=True, slots=True)
class Enumeration:
    """Named integers; each constant is `prefix` + its Python name."""

    name: str
    prefix: str
    doc: str
    members: type[IntEnum]
    docs: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument. A pointer has `length`, the argument that counts its elements; without one it points to one."""

    name: str
    ctype: str  # of the value, or of the element pointed to
    doc: str
    direction: Literal["in", "out"] = "in"
    pointer: bool = False
    length: str | None = None
    optional: bool = False  # NULL (None in Python) is taken, as for every array of length 0

    @property
    def declaration(self) -> str:
        """As C declares it."""
        if not self.pointer:
            return f"{self.ctype} {self.name}"
        const = "const " if self.direction == "in" else ""
        return f"{const}{self.ctype} *{self.name}"

    @property
    def is_handle(self) -> bool:
        return not self.pointer and self.ctype in HANDLES

    @property
    def memory(self) -> str:
        """dtype and shape, for the reference."""
        dtype = "utf-8" if self.ctype == "char" else str(DTYPES.get(self.ctype, self.ctype))
        if not self.pointer:
            return dtype
        is_structure = self.ctype not in DTYPES
        return f"{dtype} [{1 if self.length is None or is_structure else self.length}]"


@dataclass(frozen=True, slots=True)
class StatusMeaning:
    """A status an entry may return and the states its session may be in afterwards; None: nothing has changed."""

    status: Status
    when: str
    after: tuple[SessionState, ...] | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """One function of the flat API. `outcomes` are its own; `COMMON` of `specruntime.abi` holds for all."""

    name: str
    purpose: str
    arguments: tuple[Argument, ...] = ()
    outcomes: tuple[StatusMeaning, ...] = ()
    ownership: str = ""
    returns: str = "spx_status"

    @property
    def handle(self) -> Argument | None:
        """The handle the entry works on; always its first argument."""
        return self.arguments[0] if self.arguments and self.arguments[0].is_handle else None

    @property
    def pointers(self) -> Iterator[Argument]:
        return (argument for argument in self.arguments if argument.pointer)


def value(name: str, ctype: str, doc: str) -> Argument:
    return Argument(name, ctype, doc)


def given(name: str, ctype: str, length: str, doc: str, *, optional: bool = False) -> Argument:
    """[in] `length` elements, or a structure of `length` bytes, that are read."""
    return Argument(name, ctype, doc, "in", pointer=True, length=length, optional=optional)


def filled(name: str, ctype: str, length: str, doc: str) -> Argument:
    """[out] room for `length` elements that are written."""
    return Argument(name, ctype, doc, "out", pointer=True, length=length)


def result(name: str, ctype: str, doc: str, *, optional: bool = False) -> Argument:
    """[out] one value."""
    return Argument(name, ctype, doc, "out", pointer=True, optional=optional)


def text_out(doc: str) -> tuple[Argument, Argument, Argument]:
    """Return the three arguments of every entry that gives text."""
    return (
        filled("text", "char", "capacity", doc),
        value("capacity", "int64_t", "bytes that `text` can hold; 0 asks for `needed` alone"),
        result("needed", "int64_t", "bytes of the text with its closing NUL; also set by BUFFER_TOO_SMALL"),
    )


def ids_out(doc: str) -> tuple[Argument, Argument, Argument]:
    """Return the three arguments of every entry that gives token ids which exist before the call."""
    return (
        filled("ids", "int64_t", "capacity", doc),
        value("capacity", "int64_t", "ids that `ids` can hold; 0 asks for `count` alone"),
        result("count", "int64_t", "number of ids; also set by BUFFER_TOO_SMALL"),
    )


SHORT_BUFFER = StatusMeaning(
    Status.BUFFER_TOO_SMALL, "the buffer is shorter than the size now reported; nothing else was written"
)
