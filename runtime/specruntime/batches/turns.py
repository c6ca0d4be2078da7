"""Calls that can be suspended and resumed: each has a thread that never runs at the same time as its resumer.

One of the two runs at any time, so what they share needs no lock, and the order of events does not depend on the
scheduler of the machine.
"""

from _thread import start_new_thread
from collections.abc import Callable
from threading import Lock

from specruntime import clock
from specruntime.errors import OutOfMemory

_BEGIN_SECONDS = 10.0  # a thread that has not begun by then never will


class TurnThread:
    """Runs calls that can suspend and resume, one after the other."""

    def __init__(self) -> None:
        """Raise `OutOfMemory` where the process has none for another thread."""
        self.waited = 0.0  # seconds that calls spent suspended
        self._call: Callable[[], None] | None = None
        self._failure: BaseException | None = None
        self._ended = False
        self._go, self._back = Lock(), Lock()
        self._go.acquire()
        self._back.acquire()
        # `threading.Thread.start` would wait for ever for a thread that finds no memory before it begins.
        try:
            start_new_thread(self._serve, ())
            self._alive = self._back.acquire(timeout=_BEGIN_SECONDS)
        except RuntimeError:
            self._alive = False
        if not self._alive:
            raise OutOfMemory("no memory for a thread: fill fewer slots, or raise the limits of this process")

    def begin(self, call: Callable[[], None]) -> None:
        """Set what the next `resume` starts; the call before must have ended."""
        self._call, self._ended = call, False

    def resume(self) -> bool:
        """Let the call run until it suspends itself, or to its end: True then. Raises what the call raised."""
        self._go.release()
        self._back.acquire()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        return self._ended

    def suspend(self) -> None:
        """Return control, from within the call, to the thread that resumed it, until the next `resume`."""
        started = clock.now()
        self._back.release()
        self._go.acquire()
        self.waited += clock.now() - started

    def close(self) -> None:
        """End the thread; no call may be under way."""
        if self._alive:
            self._alive, self._call = False, None
            self._go.release()
            self._back.acquire()

    def _serve(self) -> None:
        self._back.release()
        while True:
            self._go.acquire()
            call = self._call
            if call is None:
                self._back.release()
                return
            try:
                call()
            except BaseException as error:
                self._failure = error
            self._ended = True
            self._back.release()
