"""Does work next to the opening of a bundle: imports, reading the tokenizer, hashing the ends of files.

Hashing and an engine's loading leave the interpreter free. Nothing is parsed before its hash was checked.
"""

import _thread
import atexit
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Generic, TypeVar

from specruntime.manifest.engine import EngineSection
from specruntime.manifest.schema import Manifest
from specruntime.text.codec import TextCodec

T = TypeVar("T")


class Begun(Generic[T]):
    """Work that runs in a thread of its own, or in the thread that needs it where that one failed.

    A process at its memory limit cannot start a thread, or the thread ends before it runs anything; neither
    `threading.Thread.start` nor an executor's future returns then.
    """

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._unclaimed = _thread.allocate_lock()
        self._undone = _thread.allocate_lock()
        self._undone.acquire()
        self._value: T | None = None
        self._error: BaseException | None = None
        with suppress(RuntimeError, MemoryError):  # then it is done when it is needed
            _thread.start_new_thread(self._run, ())

    def result(self) -> T:
        """Return what the work returned. Raises what it raised."""
        self._run()
        with self._undone:
            if self._error is not None:
                raise self._error
            return self._value  # type: ignore[return-value]  # no error: the work has returned

    def end(self) -> None:
        """Wait if the work is being done; else it never will be, and `result` says so."""
        if self._unclaimed.acquire(blocking=False):
            self._error = RuntimeError("ended before it began")
            self._undone.release()
        else:
            with self._undone:
                pass

    def _run(self) -> None:
        if not self._unclaimed.acquire(blocking=False):
            return
        try:
            _RUNNING.add(self)
            self._value = self._work()
        except BaseException as error:
            self._error = error
        finally:
            _RUNNING.discard(self)
            self._undone.release()


_RUNNING: set[Begun[Any]] = set()


@atexit.register
def _end_all() -> None:
    """Native code must not run on while the interpreter ends."""
    for each in tuple(_RUNNING):
        each.end()


class Preload:
    """Begins what opening a bundle will need; `result` of each raises what it met."""

    def __init__(self, manifest: Manifest, text: bool) -> None:
        """Begin with imports: of the target's library, and with `text` of the tokenizer's."""
        self._spec = manifest.tokenizer if text else None
        names = [] if self._spec is None else ["tokenizers", "jinja2.sandbox"]
        engine = manifest.target.engine
        self._begun: list[Begun[Any]] = [Begun(lambda: _import_all(engine, names))]

    def tokenizer(self, root: Path) -> Begun[TextCodec] | None:
        """Begin to read the tokenizer, whose files were checked. None where it was not requested or does not exist."""
        spec = self._spec
        return None if spec is None else self._keep(Begun(lambda: TextCodec.open(root, spec)))

    def check(self, work: Callable[[], None]) -> Callable[[], None]:
        """Begin a check; what is returned waits for it and raises what it found."""
        return self._keep(Begun(work)).result

    def _keep(self, begun: Begun[T]) -> Begun[T]:
        self._begun.append(begun)
        return begun

    def __enter__(self) -> "Preload":
        return self

    def __exit__(self, *error: object) -> None:
        if error[0] is not None:
            for begun in self._begun:
                begun.end()


def _import_all(engine: EngineSection, names: list[str]) -> None:
    engine.load_library()
    for name in names:
        import_module(name)
