"""Requests over slots: first come, first served, one thread that drives the stepper.

Owns the queue and its limit, deadlines, cancellation, the events of each request, and shutdown. Between two
steps every overdue or cancelled request leaves its slot and the next one takes it.
"""

import logging
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from threading import Condition, Thread

from specruntime import clock
from specruntime.errors import InvalidArgument, SpecError
from specruntime.serving.events import (
    Cancelled,
    DeadlinePassed,
    Delivery,
    Draining,
    Event,
    Failure,
    Figures,
    QueueFull,
    authors_of,
)
from specruntime.serving.stepper import Seconds, Stepper, Turn, Work
from specruntime.verify import Round


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How full a scheduler is at one moment."""

    slots: int  # that work
    active: int
    queued: int
    queue_limit: int
    rows: int  # KV rows in use
    row_limit: int


@dataclass(slots=True)
class Totals:
    """Counters over all requests."""

    ended: Counter[str] = field(default_factory=Counter)  # requests by finish reason, or by the error's name
    refused: Counter[str] = field(default_factory=Counter)  # requests by why they were not taken
    prompt_tokens: int = 0  # of admitted requests
    cached_tokens: int = 0  # of these, whose cache rows were there already
    tokens: int = 0  # delivered
    rounds: int = 0
    drafting_rounds: int = 0  # that judged at least one drafted token
    proposed: int = 0
    accepted: int = 0
    accepted_at: Counter[int] = field(
        default_factory=Counter
    )  # drafting rounds that accepted depth 0, 1, ...
    round_sizes: Counter[int] = field(default_factory=Counter)  # rounds by tokens committed
    seconds: Seconds = field(default_factory=Seconds)
    slot_failures: int = 0

    def count(self, turn: Turn) -> None:
        """Book one turn."""
        for phase in ("prefill", "draft", "verify", "accept", "other"):
            setattr(self.seconds, phase, getattr(self.seconds, phase) + getattr(turn.seconds, phase))
        self.cached_tokens += turn.cached
        if turn.error is not None:
            self.slot_failures += 1
        if turn.round is None or turn.delta is None:
            return
        self.tokens += len(turn.delta.tokens)
        self.rounds += 1
        self.round_sizes[len(turn.round.tokens)] += 1
        self.drafting_rounds += turn.round.proposed > 0
        self.proposed += turn.round.proposed
        self.accepted += turn.round.accepted
        for depth in range(turn.round.accepted):
            self.accepted_at[depth] += 1

    @property
    def acceptance_by_position(self) -> tuple[float, ...]:
        """Share of drafting rounds that accepted the draft at depth 0, 1, ..."""
        depths = range(max(self.accepted_at, default=-1) + 1)
        return tuple(self.accepted_at[depth] / self.drafting_rounds for depth in depths)


_LOG = logging.getLogger("specruntime.serving")


class Ticket:
    """One request from its submission to its last event."""

    def __init__(self, work: Work, deliver: Callable[[Event], None], deadline: float | None) -> None:
        self.work = work
        self.figures = Figures(len(work.prompt), work.params.seed)
        self.cancelled = False
        self.deadline = deadline  # on `clock.now`
        self.submitted = clock.now()
        self._deliver = deliver

    def cancel(self) -> None:
        """End the request before the next step; its last event is a failure. From any thread, at any time."""
        self.cancelled = True

    @property
    def verdict(self) -> Exception | None:
        """Why the request must end now, if it must."""
        if self.cancelled:
            return Cancelled("the request was cancelled by its client")
        if self.deadline is not None and clock.now() >= self.deadline:
            return DeadlinePassed(
                f"the time of the request was over after {clock.now() - self.submitted:.1f} s: "
                "ask for fewer tokens, or allow more time"
            )
        return None

    def send(self, event: Event) -> None:
        """Deliver an event; a receiver that fails is one that does not want the answer."""
        try:
            self._deliver(event)
        except Exception:
            self.cancelled = True


class Scheduler:
    """Serves requests over one stepper, from a thread of its own. Closing it closes the stepper. A context manager."""

    def __init__(self, stepper: Stepper, *, queue_limit: int = 64) -> None:
        """`queue_limit` requests may wait while every slot is taken; 0 or more."""
        if queue_limit < 0:
            raise InvalidArgument(f"queue_limit is {queue_limit}, expected 0 or more")
        self.totals = Totals()
        self._stepper = stepper
        self._queue_limit = queue_limit
        self._waiting: deque[Ticket] = deque()
        self._active: dict[int, Ticket] = {}
        self._free = list(range(stepper.slots))
        self._changed = Condition()
        self._draining = self._closed = False
        self._thread = Thread(target=self._serve, name="specruntime-scheduler", daemon=True)
        self._thread.start()

    @property
    def accepting(self) -> bool:
        """Whether new requests are taken: it is not being shut down, and has a slot that works."""
        return not (self._draining or self._closed)

    def check(self, work: Work) -> Work:
        """Return the work as `submit` takes it. Raises what `Stepper.check` raises. From any thread."""
        return self._stepper.check(work)

    def submit(self, work: Work, deliver: Callable[[Event], None], *, seconds: float | None = None) -> Ticket:
        """Queue the work; `deliver` is called with every event from the scheduler's thread and must not block.

        Work without a seed gets one of its own here; `Ticket.figures` says which. `seconds` is the time the request
        may take from now on. Raises what `Stepper.check` raises, `QueueFull` and `Draining`; nothing is delivered then.
        """
        deadline = None if seconds is None else clock.now() + seconds
        ticket = Ticket(self._stepper.check(work).seeded(), deliver, deadline)
        with self._changed:
            if not self.accepting:
                self.totals.refused["draining"] += 1
                raise Draining(
                    "this LLM or server is closed or shutting down and takes no requests; use another one"
                )
            if len(self._waiting) >= self._queue_limit + len(self._free):
                self.totals.refused["queue_full"] += 1
                raise QueueFull(
                    f"{len(self._waiting)} requests wait already, at most {self._queue_limit} may: try again later"
                )
            self._waiting.append(ticket)
            self._changed.notify_all()
        return ticket

    def occupancy(self) -> Occupancy:
        with self._changed:
            return Occupancy(
                slots=len(self._active) + len(self._free),
                active=len(self._active),
                queued=len(self._waiting),
                queue_limit=self._queue_limit,
                rows=self._stepper.rows(),
                row_limit=self._stepper.slots * self._stepper.capacity,
            )

    def stop_accepting(self) -> None:
        """Refuse new requests from now on; those that were taken go on."""
        with self._changed:
            self._draining = True
            self._changed.notify_all()

    def drain(self, timeout: float | None = None) -> bool:
        """`stop_accepting`, then waits until the last answer has ended; False when that took longer."""
        self.stop_accepting()
        with self._changed:
            return self._changed.wait_for(lambda: not (self._waiting or self._active), timeout)

    def close(self) -> None:
        """End what still runs with `Draining` and free the slots. Idempotent."""
        with self._changed:
            self._draining = self._closed = True
            self._changed.notify_all()
        self._thread.join()
        self._stepper.close()

    def __enter__(self) -> "Scheduler":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self) -> None:
        reason: Exception = Draining("the server was shut down before the answer ended")
        try:
            while self._await_work():
                self._end_overdue()
                self._admit()
                self._step()
        except (
            Exception
        ) as error:  # without this thread the stepper stops and every request would wait for ever
            _LOG.exception("the scheduler failed; every answer ends and no new one is taken")
            self.stop_accepting()
            reason = error
        self._end_active(reason)
        self._end_waiting(reason)

    def _await_work(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._waiting or self._active)
            return not self._closed

    def _end_overdue(self) -> None:
        for slot, ticket in list(self._active.items()):
            if (error := ticket.verdict) is not None:
                self._release(slot)
                self._fail(ticket, error)
        with self._changed:
            late = [(ticket, error) for ticket in self._waiting if (error := ticket.verdict) is not None]
            for ticket, _ in late:
                self._waiting.remove(ticket)
        for ticket, error in late:
            self._fail(ticket, error)
        self._end_without_slots()

    def _admit(self) -> None:
        while True:
            with self._changed:
                if not (self._waiting and self._free):
                    return
                ticket = self._waiting.popleft()
                slot = self._chosen(ticket.work)
                self._free.remove(slot)
                self._active[slot] = ticket
            try:
                self._stepper.admit(slot, ticket.work)
            except Exception as error:
                self._release(slot)
                self._fail(ticket, error)
                continue
            ticket.figures.queued_seconds = clock.now() - ticket.submitted
            self.totals.prompt_tokens += len(ticket.work.prompt)

    def _chosen(self, work: Work) -> int:
        """Return the free slot that suits the work; any does where the choice fails, for want of memory say."""
        try:
            return self._free[self._free.index(self._stepper.choose(self._free, work))]
        except Exception:
            _LOG.exception("no slot could be preferred; the first is taken")
            return self._free[0]

    def _step(self) -> None:
        if not self._active:
            return
        try:
            for turn in self._stepper.step():
                self.totals.count(turn)
                self._report(turn)
        except Exception as error:  # not one slot's failure: it is unknown which answers are still sound
            _LOG.exception("a step failed as a whole; every answer in progress ends")
            self.totals.slot_failures += len(self._active)
            self._end_active(error)
        self._end_without_slots()

    def _report(self, turn: Turn) -> None:
        """Deliver the turn's events to its request. A slot is free before its request gets the last one."""
        ticket = self._active[turn.slot]
        ticket.figures.cached_tokens += turn.cached
        if turn.error is not None:
            self._release(turn.slot)
            self._fail(ticket, turn.error)
        elif turn.delta is not None and turn.round is not None:
            self._count(ticket.figures, ticket, turn.round, len(turn.delta.tokens))
            if turn.delta.finish_reason is not None:
                self._release(turn.slot)
                self.totals.ended[turn.delta.finish_reason] += 1
            authors = authors_of(turn.round, len(turn.delta.tokens))
            ticket.figures.seconds = clock.now() - ticket.submitted
            ticket.send(Delivery(turn.delta, authors, replace(ticket.figures)))

    @staticmethod
    def _count(figures: Figures, ticket: Ticket, round: Round, delivered: int) -> None:
        if not figures.rounds:
            figures.first_seconds, figures.first_tokens = clock.now() - ticket.submitted, delivered
        figures.rounds += 1
        figures.tokens += delivered
        figures.proposed += round.proposed
        figures.accepted += round.accepted

    def _release(self, slot: int) -> None:
        """Empty a slot for the next request; one that cannot be emptied is not used again."""
        works = True
        try:
            self._stepper.evict(slot)
        except Exception:
            _LOG.exception("slot %d is lost", slot)
            works = False
        with self._changed:
            del self._active[slot]
            self._free = sorted([*self._free, slot]) if works else self._free
            self._changed.notify_all()

    def _fail(self, ticket: Ticket, error: Exception) -> None:
        name = type(error).__name__
        self.totals.ended[name] += 1
        if not isinstance(error, SpecError):
            _LOG.error("an answer ended with %s: %s", name, error, exc_info=error)
        ticket.figures.seconds = clock.now() - ticket.submitted
        ticket.send(Failure(error, ticket.figures))

    def _end_without_slots(self) -> None:
        with self._changed:
            lost = not (self._free or self._active)
        if lost:
            self.stop_accepting()
            self._end_waiting(Draining("no slot of the server works any more; restart it"))

    def _end_active(self, error: Exception) -> None:
        for slot, ticket in list(self._active.items()):
            self._release(slot)
            self._fail(ticket, error)

    def _end_waiting(self, error: Exception) -> None:
        with self._changed:
            waiting, self._waiting = list(self._waiting), deque()
            self._changed.notify_all()
        for ticket in waiting:
            self._fail(ticket, error)
