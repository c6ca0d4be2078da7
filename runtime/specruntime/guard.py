"""What surrounds the calls of a session: one thread at a time, no work after a failure, no ids that are not tokens, and
the seconds of a round's phases.

Knows nothing of what the session does in between.
"""

from collections.abc import Callable, Sequence
from threading import Lock
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from specruntime.errors import EmptyPrompt, InvalidArgument, SessionBusy, SessionPoisoned, WrongState
from specruntime.sampling.params import shown
from specruntime.statistics import Statistics


class Guard:
    """Open, poisoned or closed; and whether a call is running.

    `with guard.exclusive:` surrounds a whole call, `with guard.engine_calls:` the part in which engines run.
    """

    def __init__(self) -> None:
        self.poisoned = False
        self.closed = False
        self.exclusive = _Exclusive()
        self.engine_calls = _EngineCalls(self)

    def fail(self, kind: type[BaseException]) -> None:
        """Poison the session: anything that an engine call raises leaves cache rows that cannot be trusted.

        Logits that are not numbers are such a failure (`EngineFailed`). `InvalidArgument` is not: it is raised
        between engine calls, where the answer's own options ban every token.
        """
        if not issubclass(kind, InvalidArgument):
            self.poisoned = True

    def require_open(self) -> None:
        """Raise `WrongState` after close."""
        if self.closed:
            raise WrongState("the session is closed: open a new one")

    def require_sound(self) -> None:
        """Raise `WrongState` after close, `SessionPoisoned` after a failure."""
        self.require_open()
        if self.poisoned:
            raise SessionPoisoned(
                "an engine call failed in this session: reset it (its tokens are lost) or close it"
            )


class _Exclusive:
    """Refuses, with `SessionBusy`, a call that comes while another runs: waiting would hide a race."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = Lock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise SessionBusy("another call is running in this session: use one session per thread")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()


class _EngineCalls:
    """Poisons the session by what is raised in its block, as `Guard.fail` says."""

    __slots__ = ("_guard",)

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._guard.fail(kind)


class Phases:
    """The phases of one round, each a block of engine calls that is timed: `with phases.draft:`.

    A phase may be entered several times in a round; its `seconds` are the sum.
    """

    def __init__(self, guard: Guard, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.draft = Phase(guard, self)
        self.verify = Phase(guard, self)
        self.accept = Phase(guard, self)
        self._started = 0.0

    def begin(self) -> None:
        """Start a round: no phase has taken any time."""
        self.draft.seconds = self.verify.seconds = self.accept.seconds = 0.0
        self._started = self.clock()

    def whole(self) -> float:
        """Seconds since `begin`."""
        return self.clock() - self._started

    def count(self, stats: Statistics, *, prefill: bool) -> None:
        """Book the round that ends now."""
        stats.count_seconds(
            draft=self.draft.seconds,
            verify=self.verify.seconds,
            accept=self.accept.seconds,
            whole=self.whole(),
            prefill=prefill,
        )


class Phase:
    """One phase of a round: see `Phases`."""

    __slots__ = ("_guard", "_phases", "_started", "seconds")

    def __init__(self, guard: Guard, phases: Phases) -> None:
        self.seconds = 0.0
        self._guard = guard
        self._phases = phases
        self._started = 0.0

    def __enter__(self) -> None:
        self._started = self._phases.clock()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.seconds += self._phases.clock() - self._started
        else:
            self._guard.fail(kind)


def index(name: str, value: object) -> int:
    """Return the value as Python's integer; raises `InvalidArgument` for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise InvalidArgument(f"{name} is {shown(value)}, expected an integer")
    return int(value)


def token_ids(ids: Sequence[int] | NDArray[np.integer], vocab_size: int) -> NDArray[np.int64]:
    """Return checked ids [n]; raises `EmptyPrompt` or `InvalidArgument` naming the first that is not a token."""
    try:
        array = np.asarray(ids)
    except (ValueError, TypeError, OverflowError) as error:
        reason = str(error).partition(". ")[0]
        raise InvalidArgument(
            f"token ids are a one-dimensional sequence of integers, found one that is not: {reason}"
        ) from error
    if array.ndim == 1 and array.size == 0:
        raise EmptyPrompt("the prompt is empty: give at least one token")
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InvalidArgument(
            f"token ids are a one-dimensional sequence of integers, found {array.ndim} dimensions of {array.dtype}"
        )
    outside = np.flatnonzero((array < 0) | (array >= vocab_size))
    if outside.size:
        index = int(outside[0])
        raise InvalidArgument(
            f"token id {array[index]} at index {index} is outside the vocabulary of {vocab_size}"
        )
    return array.astype(np.int64, copy=False)
