"""What engine and session handles stand for, and who may use them when.

An engine counts its sessions, so that none of them outlives the weights. A session lets one thread in at a time.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from threading import Lock
from typing import Protocol, TypeVar

from specruntime.abi import SessionState
from specruntime.bundle import LoadedBundle
from specruntime.errors import InvalidArgument, InvalidHandle, SessionBusy, SessionPoisoned, WrongState
from specruntime.generation import Answer, Delta
from specruntime.sampling.params import SamplingParams
from specruntime.sampling.sampler import TokenLogprobs
from specruntime.session import Session
from specruntime.text.codec import TextCodec
from specruntime.verify import Round


class OpenEngine:
    """An open bundle."""

    def __init__(self, bundle: LoadedBundle) -> None:
        self.error = ""
        self.bundle = bundle
        self.sessions = 0
        self._lock = Lock()
        self._closed = False

    @contextmanager
    def entered(self) -> Iterator[None]:
        yield

    @property
    def k(self) -> int:
        """Most tokens drafted in a round."""
        return self.bundle.manifest.draft.k

    @property
    def codec(self) -> TextCodec:
        codec = self.bundle.tokenizer
        if codec is None:
            raise InvalidArgument("this bundle has no tokenizer: pass and read token ids")
        return codec

    def open_session(self, speculate: bool) -> "SessionRecord":
        """Count the session first: from then on the engine cannot be closed."""
        with self._lock:
            self._require_open()
            self.sessions += 1
        try:
            session = self.bundle.new_session(speculate)
        except BaseException:
            self.release()
            raise
        return SessionRecord(session, self, 1 + (self.k if speculate else 0))

    def release(self) -> None:
        """Note that a session has been closed."""
        with self._lock:
            self.sessions -= 1

    def close(self) -> None:
        with self._lock:
            self._require_open()
            if self.sessions:
                raise WrongState(f"{self.sessions} sessions of this engine are open: close them first")
            self._closed = True
        self.bundle.close()

    def _require_open(self) -> None:
        if self._closed:
            raise InvalidHandle("the engine is closed")


class SessionRecord:
    """An open session, the answer it is giving, and what of it has not been fetched yet."""

    def __init__(self, session: Session, engine: OpenEngine, round_tokens: int) -> None:
        self.error = ""
        self.session = session
        self.engine = engine
        self.logprobs: list[TokenLogprobs] | None = None  # of the tokens delivered last
        self.text: str | None = None  # not taken yet; None: the answer is not decoded
        self._round_tokens = round_tokens
        self._answer: Answer | None = None
        self._left: int | None = None  # tokens until max_tokens
        self._lock = Lock()
        self._closed = False

    @contextmanager
    def entered(self) -> Iterator[None]:
        if not self._lock.acquire(blocking=False):
            raise SessionBusy("another thread is inside a call on this session: use one session per thread")
        try:
            if self._closed:
                raise InvalidHandle("the session is closed")
            yield
        finally:
            self._lock.release()

    @property
    def state(self) -> SessionState:
        if self.session.poisoned:
            return SessionState.POISONED
        if self._answer is not None:
            return SessionState.ANSWERING if self._answer.finish_reason is None else SessionState.ENDED
        return SessionState.FILLED if self.session.length else SessionState.EMPTY

    @property
    def room_needed(self) -> int:
        """The most tokens the next round can deliver. Raises `SessionPoisoned`, or `WrongState` without an answer."""
        if self.session.poisoned:
            raise SessionPoisoned(
                "an engine call failed in this session: reset it (its tokens are lost) or close it"
            )
        if self.state is not SessionState.ANSWERING:
            raise WrongState(
                "no answer is in progress: append tokens if the session has none, then begin one"
            )
        return self._round_tokens if self._left is None else min(self._round_tokens, self._left)

    def begin(self, params: SamplingParams, *, decode_text: bool) -> None:
        codec = self.engine.codec if decode_text else None
        self.session.begin(params)
        self.forget_answer()
        self._answer = Answer(self.session, params, codec)
        self._left = params.max_tokens
        self.text = "" if decode_text else None

    def round(self) -> tuple[Round, Delta]:
        """One round and the part of it that belongs to the answer."""
        assert self._answer is not None, "room_needed was asked before"
        self.logprobs = None
        round = self.session.round()
        delta = self._answer.deliver(round)
        self.logprobs = None if delta.logprobs is None else list(delta.logprobs)
        if self.text is not None:
            self.text += delta.text
        if self._left is not None:
            self._left -= len(delta.tokens)
        return round, delta

    def forget_answer(self) -> None:
        """Forget the answer: the tokens changed, or another begins."""
        self._answer = self._left = self.logprobs = self.text = None

    def close(self) -> None:
        self.session.close()
        self._closed = True
        self.engine.release()


class Record(Protocol):
    """What a handle stands for."""

    error: str  # text of the last failed call on it

    def entered(self) -> AbstractContextManager[None]:
        """Held during each call on the handle; raises `SessionBusy` or `InvalidHandle`."""
        ...


R = TypeVar("R", bound=Record)


class Handles:
    """The table of open handles of one process. May be used from any thread."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._records: dict[int, Record] = {}
        self._lock = Lock()

    def add(self, record: Record) -> int:
        """Return a new handle for the record."""
        with self._lock:
            handle = next(self._numbers)
            self._records[handle] = record
        return handle

    def get(self, handle: int, kind: type[R]) -> R:
        """Return the record of an open handle; raises `InvalidHandle` for any other number."""
        record = self.find(handle)
        if not isinstance(record, kind):
            raise InvalidHandle(
                f"{handle} is not an open handle of this kind: it was never opened, or it is closed"
            )
        return record

    def find(self, handle: int) -> Record | None:
        """Return the record of an open handle of any kind."""
        with self._lock:
            return self._records.get(handle)

    def holds(self, record: Record) -> bool:
        """Whether some open handle stands for the record."""
        with self._lock:
            return any(kept is record for kept in self._records.values())

    def drop(self, record: Record) -> None:
        """Make the record's handle invalid."""
        with self._lock:
            self._records = {handle: kept for handle, kept in self._records.items() if kept is not record}


HANDLES = Handles()
