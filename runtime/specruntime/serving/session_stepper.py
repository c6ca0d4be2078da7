"""Slots that are sessions of one bundle: each has its own caches, so neighbours change nothing.

A prompt is fed one widest window a turn, through the session's own calls: append a piece, let a round feed it, take
the round's token back. That leaves the piece's last token outside the cache, where the next piece begins.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from specruntime.bundle import LoadedBundle
from specruntime.drafts import Draft
from specruntime.drafts.wrappers import DraftSwitch
from specruntime.errors import CapacityExceeded, InvalidArgument, SpecError
from specruntime.generation import Answer
from specruntime.guard import token_ids
from specruntime.sampling.params import SamplingParams
from specruntime.sampling.sampler import Sampler
from specruntime.serving.prefixes import PrefixCaching, Prefixes
from specruntime.serving.stepper import Seconds, Turn, Work
from specruntime.session import Session
from specruntime.statistics import Statistics
from specruntime.text.codec import TextCodec, TextStream

_FEEDING = SamplingParams()  # of the rounds whose token is taken back


class SessionStepper:
    """One session per slot, all made at once: what does not fit the memory is refused before the first request."""

    def __init__(
        self,
        bundle: LoadedBundle,
        slots: int,
        *,
        workers: int = 1,
        prefix_caching: PrefixCaching = "exact",
    ) -> None:
        """`workers` threads take turns at the same time; 1 takes them one after the other in the calling thread.

        Raises `InvalidArgument` for counts below 1 and an unknown `prefix_caching`, `OutOfMemory` when the caches of
        all slots do not fit.
        """
        if slots < 1 or workers < 1:
            raise InvalidArgument(f"found {slots} slots and {workers} workers, expected at least 1 of each")
        self.slots = slots
        self.capacity = bundle.manifest.target.capacity
        self._bundle = bundle
        self._prefixes = Prefixes(bundle.manifest, prefix_caching)
        self._codec = bundle.tokenizer
        self._chunk = max(profile.width for profile in bundle.manifest.target.profiles)
        self._waiting: list[int] = []  # slots whose prompt is not all fed, in the order of their admission
        self._emptied = 0  # slots so far
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
        constraint = self._bundle.constraints.constrain(work.params)
        Sampler(work.params, vocabulary, manifest.eos_token_ids, (), constraint)
        return replace(work, prompt=prompt)

    def choose(self, free: Sequence[int], work: Work) -> int:
        """Return a slot whose cache begins as the prompt does, if that is most of what it holds; else the longest
        unused.
        """
        if not self._prefixes.on:
            return free[0]
        slots = [self._slots[number] for number in free]
        best = max(slots, key=lambda slot: self._usable(work, slot))
        if 2 * self._usable(work, best) > best.session.length:
            return best.number
        return min(slots, key=lambda slot: slot.emptied).number

    def admit(self, slot: int, work: Work) -> None:
        self._slots[slot].fill(work)
        self._waiting.append(slot)

    def step(self) -> Iterator[Turn]:
        due = [slot for slot in self._slots if slot.decoding]
        if self._waiting:
            first = self._slots[self._waiting[0]]
            if (failed := self._begin(first)) is None:
                due.append(first)
            else:
                self._waiting.remove(first.number)
                yield failed
        for turn in self._turns(due):
            if turn.slot in self._waiting and (turn.delta is not None or turn.error is not None):
                self._waiting.remove(turn.slot)
            yield turn

    def evict(self, slot: int) -> None:
        if slot in self._waiting:
            self._waiting.remove(slot)
        self._emptied += 1
        self._slots[slot].empty(self._emptied, keep=self._prefixes.on)

    def rows(self) -> int:
        return sum(slot.session.cache_length for slot in self._slots if slot.begun)

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

    def _begin(self, slot: "Slot") -> Turn | None:
        """Before a slot's first turn, while no session is at work: takes over what is computed already, from the
        slot that has most of it now. None, or the turn that failed.
        """
        if slot.begun:
            return None
        work = slot.work
        others = (each for each in self._slots if each is not slot)
        try:
            self._make_ready(slot)
            best = max((slot, *others), key=lambda each: self._usable(work, each))  # its own if none has more
            slot.begin(best, self._usable(work, best))
        except Exception as error:
            return Turn(slot.number, error=error)
        return None

    def _make_ready(self, slot: "Slot") -> None:
        """Prepare what a slot needs before its work begins."""

    def _usable(self, work: Work, slot: "Slot") -> int:
        """Tokens of the slot's session that the work can start from."""
        if slot.session.poisoned:
            return 0
        of_group = work.group is not None and slot.group is work.group
        return self._prefixes.usable(work, slot.session.tokens, slot.pieces, of_group=of_group)

    def _answer(self, session: Session, work: Work) -> Answer:
        codec = self._codec
        return Answer(session, work.params, None if codec is None else _Decoders(codec, work.shown))

    def _new_session(self, number: int) -> tuple[Session, DraftSwitch]:
        """Return a session for the slot of this number."""
        made: list[DraftSwitch] = []

        def switched(draft: Draft) -> Draft:
            made.append(DraftSwitch(draft))
            return made[0]

        return self._bundle.new_session(adapt=switched), made[0]


@dataclass(frozen=True)
class _Decoders:
    """Decodes an answer with some of the special tokens as text."""

    codec: TextCodec
    shown: Mapping[int, str]

    def stream(self, prompt: Sequence[int] = ()) -> TextStream:
        return self.codec.stream(prompt, self.shown)


class Slot:
    """One session and the work it is at."""

    def __init__(self, number: int, new_session: Callable[[], tuple[Session, DraftSwitch]]) -> None:
        self.number = number
        self._new_session = new_session
        self.session, self._switch = new_session()
        self.begun = False  # whether its session is at the work, and not where the work before left it
        self.pieces = 0  # tokens of the session that were fed in whole pieces from the beginning
        self.emptied = 0  # when, counted in slots emptied
        self._work: Work | None = None
        self._answer: Answer | None = None
        self._fed = 0  # tokens of the prompt that are in the session
        self._cached = 0  # of these, tokens whose cache rows were there already; reported with the first turn

    @property
    def decoding(self) -> bool:
        return self._answer is not None

    @property
    def group(self) -> object:
        """The group of the work that its session is at."""
        return None if self._work is None or not self.begun else self._work.group

    @property
    def work(self) -> Work:
        assert self._work is not None, "only filled slots are asked for their work"
        return self._work

    def fill(self, work: Work) -> None:
        self._switch.on = work.speculate
        self._work, self._answer, self.begun = work, None, False

    def begin(self, source: "Slot", length: int) -> None:
        """Start the work from the first `length` tokens of a slot, maybe this one; 0: from nothing."""
        if length and source is self:
            self.session.rewind(length)
        else:
            self.session.reset()
        if length and source is not self:
            try:
                self.session.start_from(source.session, length)
            except SpecError:  # the rows can still be computed
                self.session.reset()
                length = 0
        self.begun, self.pieces, self._fed, self._cached = True, length, length, self.session.cache_length

    def allow_drafts(self, allowed: bool) -> None:
        """Whether rounds from now on may draft, where the work itself allows it.

        Where drafts are drawn the tokens of a seed follow them, so such work drafts regardless of other rows.
        """
        assert self._work is not None
        self._switch.on = self._work.speculate and (allowed or self._work.params.draws_drafts)

    def empty(self, now: int, *, keep: bool) -> None:
        """End the work. Unless it may `keep` them for others, forget its tokens; a session that cannot be healed is
        replaced by a new one.
        """
        self._work, self._answer, self.begun, self.emptied = None, None, False, now
        if keep and not self.session.poisoned:
            return
        try:
            self.session.reset()
        except Exception:
            self.session.close()
            self.session, self._switch = self._new_session()

    def prepare(self, chunk: int, answer: Callable[[Session, Work], Answer]) -> Callable[[], Turn]:
        """`turn`, to be called later."""
        return partial(self.turn, chunk, answer)

    def turn(self, chunk: int, answer: Callable[[Session, Work], Answer]) -> Turn:
        """Run a chunk of the prompt or a round; never raises but for an interrupt."""
        started = self.session.clock()
        cached, self._cached = self._cached, 0
        try:
            if self._feed(chunk):
                seconds = Seconds(prefill=self.session.clock() - started)
                return Turn(self.number, cached=cached, seconds=seconds)
            return self._round(started, answer, cached)
        except Exception as error:
            return Turn(self.number, error=error)

    def _feed(self, chunk: int) -> bool:
        """Feed one window of the prompt; False when what is left fits the window of the first round."""
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
        self._fed = self.pieces = end
        return True

    def _round(self, started: float, answer: Callable[[Session, Work], Answer], cached: int) -> Turn:
        assert self._work is not None
        first = self._answer is None
        if self._answer is None:
            self.session.append(self._work.prompt[self._fed :])
            self.session.begin(self._work.params)
            self._answer = answer(self.session, self._work)
        before = _phases(self.session.stats)
        round = self.session.round()
        drafted, verified, accepted = (_phases(self.session.stats) - before).tolist()
        delta = self._answer.deliver(round)
        total = self.session.clock() - started
        seconds = (
            Seconds(prefill=total)
            if first
            else Seconds(0.0, drafted, verified, accepted, max(0.0, total - drafted - verified - accepted))
        )
        return Turn(self.number, delta, round, cached=cached, seconds=seconds)


def _phases(stats: Statistics) -> NDArray[np.float64]:
    """[3] seconds so far: draft, verify, accept."""
    return np.array([stats.draft_seconds, stats.verify_seconds, stats.accept_seconds])
