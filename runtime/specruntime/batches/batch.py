"""Sessions that take their turns together, on launches they share.

Owns the order of things: every turn goes on until it waits for the engine or ends; when all wait, drafts are launched
before targets, so that the sessions that draft catch up with those that do not and are verified with them.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar

from specruntime import clock
from specruntime.batches.lanes import Lane, LaneGroup
from specruntime.batches.turns import TurnThread
from specruntime.errors import WrongState
from specruntime.session import Session

Result = TypeVar("Result")
Clock = Callable[[], float]


class Batch:
    """`sessions[i]` decodes on lane i; each may be used alone, as any session, or with the others through `turns`.

    Not thread-safe. Closing it closes the sessions. A context manager.
    """

    def __init__(
        self,
        target: LaneGroup,
        draft: LaneGroup | None,
        new_session: Callable[[Lane, Lane | None, Clock], Session],
    ) -> None:
        """Own the groups, which have as many lanes each; `new_session` makes the session of one lane of either."""
        self.target, self.draft = target, draft
        self.steps = 0  # calls of `turns` so far
        self.seconds = 0.0  # inside `turns`, what the caller does in between left out
        self.sessions: list[Session] = []
        self._threads: list[TurnThread] = []
        self._lanes: list[list[Lane]] = []
        self._interrupted = False
        drafts: Sequence[Lane | None] = draft.lanes if draft is not None else [None] * len(target.lanes)
        try:
            for lane, drafting in zip(target.lanes, drafts, strict=True):
                thread = TurnThread()
                lanes = [lane] if drafting is None else [lane, drafting]
                self._threads.append(thread)
                self._lanes.append(lanes)
                self.sessions.append(new_session(lane, drafting, _own_clock(thread, lanes)))
        except BaseException:
            self.close()
            raise

    @property
    def launches(self) -> int:
        """Engine calls so far, of target and draft."""
        return sum(group.launches for group in self._groups)

    @property
    def engine_seconds(self) -> float:
        """Inside engine calls so far, of target and draft."""
        return sum(group.seconds for group in self._groups)

    def turns(self, calls: Mapping[int, Callable[[], Result]]) -> Iterator[tuple[int, Result]]:
        """Carry out one call for each of some sessions, by number; yield each result when the call ends.

        The calls run one at a time and switch wherever one waits for an engine. Calls run to their ends even if
        their results are not read. The first error of a call is raised when all calls have ended.
        """
        if self._interrupted:
            raise WrongState("a turn of this batch was interrupted: close it and take a new one")
        self.steps += 1
        if len(calls) == 1:  # no other call to wait for: its windows are launched from the calling thread
            ((number, call),) = calls.items()
            started = clock.now()
            result = call()
            self.seconds += clock.now() - started
            yield number, result
            return
        yield from self._together(calls)

    def _together(self, calls: Mapping[int, Callable[[], Result]]) -> Iterator[tuple[int, Result]]:
        results: dict[int, Result] = {}
        for asked, call in calls.items():
            self._threads[asked].begin(partial(_keep, results, asked, call))
            for lane in self._lanes[asked]:
                lane.suspend = self._threads[asked].suspend
        ready, failures = deque(calls), list[Exception]()
        try:
            while (number := self._next(ready, failures)) is not None:
                if number in results:
                    yield number, results[number]
        finally:
            while self._next(ready, failures) is not None:
                pass
        if failures:
            raise failures[0]

    def vacate(self, number: int) -> None:
        """Say that of what the session's caches hold nothing is needed but the rows of its tokens.

        Where a launch over them failed the session is reset: they are undefined.
        """
        if any(lane.failed for lane in self._lanes[number]):
            self.sessions[number].reset()
        for lane in self._lanes[number]:
            lane.vacate(self.sessions[number].length)

    def close(self) -> None:
        """End the threads, closes sessions and groups. Idempotent."""
        if not self._interrupted:
            for thread in self._threads:
                thread.close()
        for session in self.sessions:
            session.close()

    def __enter__(self) -> "Batch":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _groups(self) -> list[LaneGroup]:
        return [self.target] if self.draft is None else [self.draft, self.target]

    def _next(self, ready: deque[int], failures: list[Exception]) -> int | None:
        """Go on until a call has ended: whose. None when all have."""
        started = clock.now()
        try:
            while ready or self._launch(ready):
                number = ready.popleft()
                if self._resume(number, failures):
                    return number
            return None
        finally:
            self.seconds += clock.now() - started

    def _resume(self, number: int, failures: list[Exception]) -> bool:
        self._interrupted = True  # what ends the next line early leaves a thread in the middle of its turn
        try:
            ended = self._threads[number].resume()
        except Exception as error:
            failures.append(error)
            ended = True
        self._interrupted = False
        if ended:
            for lane in self._lanes[number]:
                lane.suspend = None
        return ended

    def _launch(self, ready: deque[int]) -> bool:
        """Launch what waits and comes first; add the sessions that can go on. False where none waits."""
        for group in self._groups:
            waiting = group.waiting
            # A path of the target that drafts goes before its windows that judge.
            first = [lane for lane in waiting if not _judges(lane)] or waiting
            if first:
                group.launch(first)
                ready.extend(lane.row for lane in first)
                return True
        return False


def _keep(results: dict[int, Result], number: int, call: Callable[[], Result]) -> None:
    results[number] = call()


def _judges(lane: Lane) -> bool:
    return lane.asked is not None and lane.asked.profile.computes("top_ids")


def _own_clock(thread: TurnThread, lanes: Sequence[Lane]) -> Clock:
    """Seconds of which a session's own work takes some, or a launch it is part of; waiting for others takes none."""
    return lambda: clock.now() - thread.waited + sum(lane.launched for lane in lanes)
