"""Slots that are sessions of one bundle: each has its own caches, so neighbours change nothing.

A prompt is fed one widest window a turn, through the session's own calls: append a piece, let a round feed it, take
the round's token back. That leaves the piece's last token outside the cache, where the next piece begins.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from specruntime.bundle import LoadedBundle
from specruntime.drafts import Draft
from specruntime.errors import CapacityExceeded, InvalidArgument
from specruntime.generation import Answer
from specruntime.guard import token_ids
from specruntime.params import SamplingParams
from specruntime.sampling import Sampler
from specruntime.serving.draft_switch import DraftSwitch
from specruntime.serving.stepper import Seconds, Turn, Work
from specruntime.session import Session
from specruntime.statistics import Statistics

_FEEDING = SamplingParams()  # of the rounds whose token is taken back


class SessionStepper:
    """One session per slot, all made at once: what does not fit the memory is refused before the first request."""

    def __init__(self, bundle: LoadedBundle, slots: int, *, workers: int = 1) -> None:
        """`workers` threads take turns at the same time; 1 takes them one after the other in the calling thread.

        Raises `InvalidArgument` for counts below 1, `OutOfMemory` when the caches of all slots do not fit.
        """
        if slots < 1 or workers < 1:
            raise InvalidArgument(f"found {slots} slots and {workers} workers, expected at least 1 of each")
        self.slots = slots
        self.capacity = bundle.manifest.target.capacity
        self._bundle = bundle
        self._codec = bundle.tokenizer
        self._chunk = max(profile.width for profile in bundle.manifest.target.profiles)
        self._waiting: list[int] = []  # slots whose prompt is not all fed, in the order of their admission
        self._slots: list[Slot] = []
        try:
            for number in range(slots):
                self._slots.append(Slot(number, partial(self._new_session, number)))
        except BaseException:
            self.close()
            raise
        self._pool = ThreadPoolExecutor(workers, "specruntime-turn") if workers > 1 else None

    def check(self, work: Work) -> Work:
        manifest = self._bundle.manifest
        vocabulary = manifest.target.vocab_size
        prompt = token_ids(work.prompt, vocabulary)
        if len(prompt) > self.capacity:
            raise CapacityExceeded(
                f"the prompt has {len(prompt)} tokens, this bundle's capacity is {self.capacity}: shorten it, "
                "or raise `capacity` in the recipe and build again"
            )
        if work.params.stop and self._codec is None:
            raise InvalidArgument(
                "`stop` strings need text and this bundle has no tokenizer: use `stop_token_ids`"
            )
        Sampler(work.params, vocabulary, manifest.eos_token_ids, ())
        return Work(prompt, work.params, work.speculate)

    def admit(self, slot: int, work: Work) -> None:
        self._slots[slot].fill(work)
        self._waiting.append(slot)

    def step(self) -> Iterator[Turn]:
        due = [slot for slot in self._slots if slot.decoding]
        if self._waiting:
            due.append(self._slots[self._waiting[0]])
        for turn in self._turns(due):
            if turn.slot in self._waiting and (turn.delta is not None or turn.error is not None):
                self._waiting.remove(turn.slot)
            yield turn

    def evict(self, slot: int) -> None:
        if slot in self._waiting:
            self._waiting.remove(slot)
        self._slots[slot].empty()

    def rows(self) -> int:
        return sum(slot.session.cache_length for slot in self._slots)

    def close(self) -> None:
        if pool := getattr(self, "_pool", None):
            pool.shutdown()
        for slot in self._slots:
            slot.session.close()

    def _turns(self, due: "Sequence[Slot]") -> Iterator[Turn]:
        if self._pool is None or len(due) == 1:
            for slot in due:
                yield slot.turn(self._chunk, self._answer)
            return
        running = [self._pool.submit(slot.turn, self._chunk, self._answer) for slot in due]
        for future in as_completed(running):
            yield future.result()

    def _answer(self, session: Session, params: SamplingParams) -> Answer:
        return Answer(session, params, self._codec)

    def _new_session(self, number: int) -> tuple[Session, DraftSwitch]:
        """A session for the slot of this number."""
        made: list[DraftSwitch] = []

        def switched(draft: Draft) -> Draft:
            made.append(DraftSwitch(draft))
            return made[0]

        return self._bundle.new_session(adapt=switched), made[0]


class Slot:
    """One session and the work it is at."""

    def __init__(self, number: int, new_session: Callable[[], tuple[Session, DraftSwitch]]) -> None:
        self.number = number
        self._new_session = new_session
        self.session, self._switch = new_session()
        self._work: Work | None = None
        self._answer: Answer | None = None
        self._fed = 0  # tokens of the prompt that are in the session

    @property
    def decoding(self) -> bool:
        return self._answer is not None

    def fill(self, work: Work) -> None:
        self.session.reset()
        self._switch.on = work.speculate
        self._work, self._answer, self._fed = work, None, 0

    def allow_drafts(self, allowed: bool) -> None:
        """Whether rounds from now on may draft, where the work itself allows it.

        Where drafts are drawn the tokens of a seed follow them, so such work drafts whoever is beside it.
        """
        assert self._work is not None
        self._switch.on = self._work.speculate and (allowed or self._work.params.draws_drafts)

    def empty(self) -> None:
        """Forgets everything; a session that cannot be healed is replaced by a new one."""
        self._work, self._answer = None, None
        try:
            self.session.reset()
        except Exception:
            self.session.close()
            self.session, self._switch = self._new_session()

    def prepare(self, chunk: int, answer: Callable[[Session, SamplingParams], Answer]) -> Callable[[], Turn]:
        """`turn`, to be called later."""
        return partial(self.turn, chunk, answer)

    def turn(self, chunk: int, answer: Callable[[Session, SamplingParams], Answer]) -> Turn:
        """A chunk of the prompt or a round; never raises but for an interrupt."""
        started = perf_counter()
        try:
            if self._feed(chunk):
                return Turn(self.number, seconds=Seconds(prefill=perf_counter() - started))
            return self._round(started, answer)
        except Exception as error:
            return Turn(self.number, error=error)

    def _feed(self, chunk: int) -> bool:
        """Feeds one window of the prompt; False when what is left fits the window of the first round."""
        assert self._work is not None
        prompt = self._work.prompt
        room = (
            chunk if self._fed == 0 else max(chunk - 1, 1)
        )  # the piece before left its last token to be fed
        if self.decoding or len(prompt) - self._fed <= room:
            return False
        end = self._fed + room
        self.session.append(prompt[self._fed : end])
        self.session.begin(_FEEDING)
        self.session.round()
        self.session.rewind(end)
        self._fed = end
        return True

    def _round(self, started: float, answer: Callable[[Session, SamplingParams], Answer]) -> Turn:
        assert self._work is not None
        first = self._answer is None
        if self._answer is None:
            self.session.append(self._work.prompt[self._fed :])
            self.session.begin(self._work.params)
            self._answer = answer(self.session, self._work.params)
        before = _phases(self.session.stats)
        round = self.session.round()
        drafted, verified, accepted = (_phases(self.session.stats) - before).tolist()
        delta = self._answer.deliver(round)
        total = perf_counter() - started
        seconds = (
            Seconds(prefill=total)
            if first
            else Seconds(0.0, drafted, verified, accepted, max(0.0, total - drafted - verified - accepted))
        )
        return Turn(self.number, delta, round, seconds=seconds)


def _phases(stats: Statistics) -> NDArray[np.float64]:
    """[3] seconds so far: draft, verify, accept."""
    return np.array([stats.draft_seconds, stats.verify_seconds, stats.accept_seconds])
