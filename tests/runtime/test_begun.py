"""Work that is begun on a thread: its value or error once, and no wait for a thread that never ran it."""

import _thread
import threading
from collections.abc import Callable

import pytest

from specruntime.preload import Begun


def never_started(work: Callable[..., object], arguments: tuple[object, ...]) -> int:
    """A thread that ends before it runs anything, as at a memory limit."""
    return 0


def refused(work: Callable[..., object], arguments: tuple[object, ...]) -> int:
    raise RuntimeError("can't start new thread")


def test_the_value_is_had_as_often_as_it_is_needed() -> None:
    calls: list[int] = []

    def work() -> int:
        calls.append(threading.get_ident())
        return 7

    begun = Begun(work)
    assert [begun.result(), begun.result()] == [7, 7]
    assert len(calls) == 1


def test_an_error_is_raised_each_time() -> None:
    def work() -> None:
        raise ValueError("no such file")

    begun = Begun(work)
    for _ in range(2):
        with pytest.raises(ValueError, match="no such file"):
            begun.result()


@pytest.mark.parametrize("start", [never_started, refused])
def test_without_a_thread_the_one_who_needs_it_does_it(
    start: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_thread, "start_new_thread", start)
    begun = Begun(threading.get_ident)
    assert begun.result() == threading.get_ident()


def test_what_was_ended_before_it_began_is_not_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_thread, "start_new_thread", never_started)
    calls: list[int] = []
    begun = Begun(lambda: calls.append(1))
    begun.end()
    begun.end()
    with pytest.raises(RuntimeError, match="ended before it began"):
        begun.result()
    assert calls == []


def test_ending_waits_for_work_that_runs() -> None:
    started, go, done = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        go.wait(60)
        done.set()

    begun = Begun(work)
    assert started.wait(60)
    threading.Timer(0.05, go.set).start()
    begun.end()
    assert done.is_set()
