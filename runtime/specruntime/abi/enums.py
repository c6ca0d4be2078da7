"""The named integers of the flat API other than `Status`. Part of the ABI: never reused or renumbered."""

from enum import IntEnum

from specruntime.drafts import KINDS

# The seed that stands for "draw one"; as a seed it is not available here.
SEED_DRAWN = 2**64 - 1


class SessionState(IntEnum):
    """Where a session stands between two calls."""

    EMPTY = 0
    FILLED = 1
    ANSWERING = 2
    ENDED = 3
    POISONED = 4
    CLOSED = 5


class Finish(IntEnum):
    """Why an answer ended."""

    NONE = 0
    STOP = 1
    LENGTH = 2
    CAPACITY = 3


class AcceptRule(IntEnum):
    """How drafted tokens are judged when sampling."""

    MATCH = 0
    REJECTION = 1


_NUMBERED = {name: found for kind in KINDS for name, found in kind.c_numbers.items()}
# What drafts: the numbers and words of the kinds in `specruntime.drafts`.
DraftKind = IntEnum("DraftKind", [(name.upper(), number) for name, (number, _) in _NUMBERED.items()])  # type: ignore[misc]
DRAFT_KIND_DOCS: dict[int, str] = dict(_NUMBERED.values())
