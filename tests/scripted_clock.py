"""The clock that tests give: time passes where a test or a scripted engine says so, the same on every machine.

`CLOCK` is `specruntime.clock.now` in every test but those that measure (tests/latency, tests/gpu): see
`pytest_runtest_setup` in tests/conftest.py.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

TICK = 2.0**-17  # seconds of one reading: sums of powers of two are exact
STEP = 2.0**-7  # seconds of a scripted window of one row
ROW_SHARE = 2.0**-4  # of it, for each further row


class ScriptedClock:
    """Reads as `clock.now`. Each reading takes a `tick`, so that nothing takes no time at all; from any thread."""

    def __init__(self) -> None:
        self.tick = TICK
        self._time = 1024.0
        self._lock = Lock()
        self._together: list[float] | None = None

    def __call__(self) -> float:
        with self._lock:
            self._time += self.tick
            return self._time

    def advance(self, seconds: float) -> None:
        """Lets time pass."""
        with self._lock:
            if self._together is not None:
                self._together.append(seconds)
            else:
                self._time += seconds

    @contextmanager
    def together(self) -> Iterator[None]:
        """What passes inside passes for rows of one launch: the longest counts, of the others a share."""
        self._together = []
        try:
            yield
        finally:
            rows, self._together = self._together, None
            longest = max(rows, default=0.0)
            self.advance(longest + ROW_SHARE * (sum(rows) - longest))


CLOCK = ScriptedClock()


def window_seconds(width: int, step: float = STEP) -> float:
    """What a scripted engine takes for a window, where one of a single row takes `step`."""
    return step * (1 + ROW_SHARE * (width - 1))
