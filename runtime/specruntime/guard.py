"""What keeps a session's state sound: one thread at a time, no work after a failure, no ids that are not tokens.

Knows nothing of what the session does in between.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from specruntime.errors import EmptyPrompt, InvalidArgument, SessionBusy, SessionPoisoned, WrongState
from specruntime.sampling.params import shown


class Guard:
    """Open, poisoned or closed; and whether a call is running."""

    def __init__(self) -> None:
        self.poisoned = False
        self.closed = False
        self._lock = Lock()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Refuses, with `SessionBusy`, a call that comes while another runs: waiting would hide a race."""
        if not self._lock.acquire(blocking=False):
            raise SessionBusy("another call is running in this session: use one session per thread")
        try:
            yield
        finally:
            self._lock.release()

    @contextmanager
    def poisoned_by(
        self, errors: type[BaseException], *, but: tuple[type[BaseException], ...] = ()
    ) -> Iterator[None]:
        """What ends an engine call early leaves cache rows nobody vouches for; so do logits that are no numbers."""
        try:
            yield
        except but:
            raise
        except errors:
            self.poisoned = True
            raise

    def require_open(self) -> None:
        """Raises `WrongState` after close."""
        if self.closed:
            raise WrongState("the session is closed: open a new one")

    def require_sound(self) -> None:
        """Raises `WrongState` after close, `SessionPoisoned` after a failure."""
        self.require_open()
        if self.poisoned:
            raise SessionPoisoned(
                "an engine call failed in this session: reset it (its tokens are lost) or close it"
            )


def index(name: str, value: object) -> int:
    """The value as Python's integer; raises `InvalidArgument` for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise InvalidArgument(f"{name} is {shown(value)}, expected an integer")
    return int(value)


def token_ids(ids: Sequence[int] | NDArray[np.integer], vocab_size: int) -> NDArray[np.int64]:
    """Checked ids [n]; raises `EmptyPrompt` or `InvalidArgument` naming the first that is no token."""
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
