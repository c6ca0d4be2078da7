"""The flat API as data: every entry, argument, status and structure, for code that calls it or writes about it.

    from specruntime.abi import ABI_VERSION, ENTRIES, STRUCTURES, ENUMERATIONS, outcomes

`python -m specruntime.abi header` writes the C header, `python -m specruntime.abi reference` its documentation.
Knows nothing of how an entry works; `specruntime.flat` holds the functions.
"""

from collections.abc import Mapping

from specruntime.abi.entries import ANSWERS, ENGINES, LIBRARY, LIFETIME, READS, TEXTS
from specruntime.abi.enums import SEED_DRAWN, AcceptRule, DraftKind, Finish, SessionState
from specruntime.abi.structs import ENUMERATIONS, STRUCTURES
from specruntime.abi.table import ANY_STATE, Argument, Entry, Enumeration, Field, StatusMeaning, Structure
from specruntime.errors import Status

__all__ = [
    "ABI_VERSION",
    "COMMON",
    "ENTRIES",
    "ENUMERATIONS",
    "SECTIONS",
    "SEED_DRAWN",
    "STRUCTURES",
    "AcceptRule",
    "Argument",
    "DraftKind",
    "Entry",
    "Enumeration",
    "Field",
    "Finish",
    "SessionState",
    "Status",
    "StatusMeaning",
    "Structure",
    "outcomes",
]

ABI_VERSION = 1

SECTIONS: Mapping[str, tuple[Entry, ...]] = {
    "Library": LIBRARY,
    "Engines": ENGINES,
    "Sessions": LIFETIME,
    "Answers": ANSWERS,
    "Reading a session": READS,
    "Text": TEXTS,
}
ENTRIES: Mapping[str, Entry] = {entry.name: entry for rows in SECTIONS.values() for entry in rows}

# What every entry that returns a status may return, where its own row says nothing else of it.
COMMON = (
    StatusMeaning(Status.OK, ""),
    StatusMeaning(
        Status.INVALID_ARGUMENT,
        "NULL where it is not allowed, memory of another dtype, not contiguous, read-only or shorter than said, "
        "a negative length, a value out of range",
    ),
    StatusMeaning(Status.OUT_OF_MEMORY, "no memory for what the call needs; ask for the state", ANY_STATE),
    StatusMeaning(
        Status.INTERNAL, "a defect of this library or an interrupt of the host; ask for the state", ANY_STATE
    ),
)


def outcomes(entry: Entry) -> Mapping[Status, StatusMeaning]:
    """Every status the entry may return, by number; empty for an entry that returns none."""
    if entry.returns != "spx_status":
        return {}
    own = {outcome.status: outcome for outcome in entry.outcomes}
    every = {outcome.status: outcome for outcome in COMMON} | own
    return {status: every[status] for status in sorted(every)}
