"""A call that can stop in its middle and go on later: a thread that never runs beside the one that resumes it.

One of the two runs at any time, so what they share needs no lock, and the order of events does not depend on the
scheduler of the machine.
"""

from collections.abc import Callable
from threading import Lock, Thread
from time import perf_counter

from specruntime.errors import OutOfMemory


class TurnThread:
    """Carries out one call after the other, each in as many pieces as it suspends itself plus one."""

    def __init__(self, name: str) -> None:
        self.waited = 0.0  # seconds that calls spent suspended
        self._call: Callable[[], None] | None = None
        self._failure: BaseException | None = None
        self._ended = False
        self._go, self._back = Lock(), Lock()
        self._go.acquire()
        self._back.acquire()
        self._thread = Thread(target=self._serve, name=name, daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            raise OutOfMemory(
                f"no memory for the thread {name}: fill fewer slots, or raise the limits of this process"
            ) from error

    def begin(self, call: Callable[[], None]) -> None:
        """What the next `resume` starts; the call before must have ended."""
        self._call, self._ended = call, False

    def resume(self) -> bool:
        """Lets the call run until it suspends itself, or to its end: True then. Raises what the call raised."""
        self._go.release()
        self._back.acquire()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        return self._ended

    def suspend(self) -> None:
        """Called by the call itself: gives way to whoever resumed it, until the next `resume`."""
        started = perf_counter()
        self._back.release()
        self._go.acquire()
        self.waited += perf_counter() - started

    def close(self) -> None:
        """Ends the thread; no call may be under way."""
        if self._thread.is_alive():
            self._call = None
            self._go.release()
            self._thread.join()

    def _serve(self) -> None:
        while True:
            self._go.acquire()
            call = self._call
            if call is None:
                return
            try:
                call()
            except BaseException as error:
                self._failure = error
            self._ended = True
            self._back.release()
