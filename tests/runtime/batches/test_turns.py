"""Suspended calls: they resume where they stopped, raise in the resumer, and report a thread that cannot start."""

import pytest

from specruntime.batches import turns
from specruntime.batches.turns import TurnThread
from specruntime.errors import OutOfMemory
from tests.scripted_clock import CLOCK


def test_a_call_goes_on_where_it_stopped() -> None:
    thread, said = TurnThread(), list[str]()

    def call() -> None:
        for word in ("one", "two"):
            said.append(word)
            thread.suspend()
        said.append("three")

    thread.begin(call)
    ended = []
    for _ in range(3):
        ended.append(thread.resume())
        CLOCK.advance(8.0)
    assert ended == [False, False, True]
    assert said == ["one", "two", "three"] and 16.0 < thread.waited < 16.1
    thread.close()
    thread.close()


def test_an_error_reaches_who_resumes_and_the_next_call_is_carried_out() -> None:
    thread = TurnThread()

    def fail() -> None:
        raise ValueError("a defect")

    thread.begin(fail)
    with pytest.raises(ValueError, match="a defect"):
        thread.resume()
    thread.begin(lambda: None)
    assert thread.resume()
    thread.close()


@pytest.mark.parametrize("refuses", [True, False], ids=["refused", "dies before it begins"])
def test_a_thread_without_memory_is_told_and_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, refuses: bool
) -> None:
    def start(*_: object) -> None:
        if refuses:
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(turns, "start_new_thread", start)
    monkeypatch.setattr(turns, "_BEGIN_SECONDS", 0.05)
    with pytest.raises(OutOfMemory, match="fewer slots"):
        TurnThread()
