"""Compiles constraints for the tokenizer of one bundle, once each, within limits of time and number."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Any

from specruntime.constraints.grammars import grammar_of, invalid, library, limits
from specruntime.constraints.matcher import LibraryMatcher, library_tokenizer
from specruntime.errors import ConstraintInvalid, ConstraintTooLarge, InvalidArgument, WrongState
from specruntime.sampling.constraint import Constraint, bits_of
from specruntime.sampling.params import SamplingParams
from specruntime.sampling.structured import StructuredOutputsParams
from specruntime.text.codec import TextCodec

COMPILE_SECONDS = 10.0
_KEPT = 256  # compiled constraints
_WORKERS = (
    2  # that compile at the same time; a hostile constraint keeps one of them busy until the library gives up
)
_SIGNS_OF_LIMITS = ("too large", "too big", "too complex", "fuel", "limit", "deeply", "nested", "exceeds")


class Compiler:
    """Makes the constraints of one bundle's answers. May be used from any thread."""

    def __init__(
        self, codec: Callable[[], TextCodec | None], vocab: int, eos_token_ids: Sequence[int]
    ) -> None:
        """`codec` is asked for when the first constraint is compiled; `vocab` is the target's."""
        self._codec = codec
        self._vocab = vocab
        self._eos = tuple(eos_token_ids)
        self._tokenizer: Any = None
        self._compiled: OrderedDict[str, Future[Any]] = OrderedDict()
        self._workers: ThreadPoolExecutor | None = None
        self._closed = False
        self._lock, self._reading = Lock(), Lock()

    def constrain(self, params: SamplingParams) -> Constraint | None:
        """Return the constraint of an answer that begins now; None for a free one.

        Raises as `compile`, and `InvalidArgument` for an answer that has no end token.
        """
        if params.structured_outputs is None:
            return None
        ends = (*(() if params.ignore_eos else self._eos), *params.stop_token_ids)
        start = self.compile(params.structured_outputs)
        own = bits_of([token for token in self._read().eos_tokens if token < self._vocab], self._vocab)
        return Constraint(LibraryMatcher(start, self._vocab, own), self._vocab, ends)

    def compile(self, form: StructuredOutputsParams) -> Any:
        """Return the library's matcher at the start of an answer, which is not to be moved.

        Raises `BackendMissing` without the library, `InvalidArgument` for a bundle without a tokenizer,
        `ConstraintInvalid` for a form that makes no sense or allows no answer, `ConstraintTooLarge` for one that
        exceeds a limit, `WrongState` once closed.
        """
        library()
        digest = form.digest
        with self._lock:
            if (known := self._compiled.get(digest)) is None:
                if self._closed:
                    raise WrongState("the bundle is closed; open it again")
                if self._workers is None:
                    self._workers = ThreadPoolExecutor(_WORKERS, "specruntime-constraints")
                known = self._compiled[digest] = self._workers.submit(self._compile, form)
            self._compiled.move_to_end(digest)
        try:
            compiled = known.result(COMPILE_SECONDS)
        except TimeoutError as error:
            raise ConstraintTooLarge(
                f"structured_outputs.{form.kind} was not compiled within {COMPILE_SECONDS:g} s, expected a simpler one"
            ) from error
        except BaseException:
            with self._lock:
                if self._compiled.get(digest) is known:
                    del self._compiled[digest]
            raise
        with self._lock:
            while len(self._compiled) > _KEPT:
                self._compiled.popitem(last=False)
        return compiled

    def close(self) -> None:
        """Compile nothing more. Idempotent."""
        with self._lock:
            self._closed = True
            if self._workers is not None:
                self._workers.shutdown(wait=False, cancel_futures=True)

    def _compile(self, form: StructuredOutputsParams) -> Any:
        tokenizer = self._read()
        start = library().LLMatcher(tokenizer, grammar_of(form), log_level=0, limits=limits())
        if not start.is_error():
            start.compute_bitmask()  # finds what allows no answer at all, and warms the caches that copies share
        if start.is_error():
            # The library shows the form, which the caller knows, before what it says of it.
            raise _refusal(form.kind, str(start.get_error()).replace(form.text, "..."))
        return start

    def _read(self) -> Any:
        with self._reading:
            if self._tokenizer is None:
                codec = self._codec()
                if codec is None:
                    raise InvalidArgument("structured_outputs need text, and this bundle has no tokenizer")
                self._tokenizer = library_tokenizer(codec, self._vocab, self._eos)
            return self._tokenizer


def _refusal(kind: str, problem: str) -> ConstraintInvalid:
    if any(sign in problem for sign in _SIGNS_OF_LIMITS):
        return ConstraintTooLarge(str(invalid(kind, problem)))
    return invalid(kind, problem)
