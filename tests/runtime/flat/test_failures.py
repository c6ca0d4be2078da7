"""A failure stays where it happened: in its session, in its thread, on this side of the interface."""

import threading
from collections.abc import Callable

import numpy as np
import pytest

from specruntime import flat
from specruntime.abi import SessionState, Status
from specruntime.abi.structs import PARAMS
from specruntime.session import Session
from tests.runtime.flat.flat_calls import (
    GREEDY,
    PROMPT,
    Caller,
    begin_arguments,
    call,
    committed,
    generate,
    last_error,
    one,
    run_round,
    state_of,
    succeed,
)
from tests.runtime.scripted_engine import VOCAB, reference_decode


def test_a_ban_on_every_token_leaves_a_session_without_a_draft_model_as_it_was(caller: Caller) -> None:
    session = caller.begun(PROMPT, bias_ids=range(VOCAB), biases=[-np.inf] * VOCAB)
    arguments = (session, np.zeros(5, np.int64), 5, one(), None, None, one(np.int32))
    assert call("spx_session_round", *arguments) is Status.INVALID_ARGUMENT
    succeed("spx_session_begin", session, *begin_arguments())
    assert run_round(session)[0] == reference_decode(caller.language, PROMPT, 1, GREEDY)


def test_a_failed_round_poisons_its_session_and_no_other(caller: Caller) -> None:
    session, other = caller.begun(PROMPT), caller.begun(PROMPT)
    first, _ = run_round(session)
    caller.scripted.contexts[0].failing = lambda: True
    arguments = (session, np.zeros(5, np.int64), 5, one(), None, None, one(np.int32))
    assert call("spx_session_round", *arguments) is Status.ENGINE_FAILED
    assert last_error(session) == "scripted failure" and last_error(other) == ""
    assert (state_of(session), committed(session)) == (SessionState.POISONED, PROMPT + first)
    caller.scripted.contexts[0].failing = lambda: False
    for name, rest in (
        ("spx_session_round", arguments[1:]),
        ("spx_session_generate", (np.zeros(9, np.int64), 9, one(), one(np.int32))),
        ("spx_session_append", (np.array([1]), 1)),
        ("spx_session_begin", begin_arguments()),
        ("spx_session_rewind", (0,)),
    ):
        assert call(name, session, *rest) is Status.SESSION_POISONED, name
    assert generate(other, 20)[0] == reference_decode(
        caller.language, PROMPT, len(committed(other)) - 5, GREEDY
    )
    succeed("spx_session_reset", session)
    succeed("spx_session_append", session, np.array(PROMPT), 5)
    succeed("spx_session_begin", session, *begin_arguments())
    assert run_round(session)[0] == first


def test_generate_keeps_what_the_rounds_before_a_failure_delivered(caller: Caller) -> None:
    params = PARAMS.defaults()
    params["logprobs"] = 0
    session = caller.begun(PROMPT, params)
    left = iter(range(4))
    caller.scripted.contexts[0].failing = lambda: next(left, None) is None
    tokens, count, finish = np.zeros(50, np.int64), one(), one(np.int32)
    assert call("spx_session_generate", session, tokens, 50, count, finish) is Status.ENGINE_FAILED
    delivered = tokens[: count[0]].tolist()
    assert len(delivered) >= 4 and finish[0] == flat.Finish.NONE
    assert delivered == reference_decode(caller.language, PROMPT, len(delivered), GREEDY)
    assert committed(session) == PROMPT + delivered
    logprobs, found = np.zeros(50), one()
    succeed("spx_session_logprobs", session, logprobs, 50, found, None, None, 0, None)
    assert found[0] == len(delivered) and (logprobs[: len(delivered)] < 0).all()
    succeed("spx_session_close", session)


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt, SystemExit, GeneratorExit, RecursionError, ZeroDivisionError]
)
def test_nothing_that_is_raised_crosses(
    caller: Caller, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def fail(*_: object) -> None:
        raise error("inside")

    session = caller.begun(PROMPT)
    monkeypatch.setattr(caller.scripted.contexts[0], "run", fail)
    arguments = (session, np.zeros(5, np.int64), 5, one(), None, None, one(np.int32))
    assert call("spx_session_round", *arguments) is Status.INTERNAL
    assert last_error(session) == f"{error.__name__}: inside"
    assert state_of(session) is SessionState.POISONED


def in_thread(work: Callable[[], object]) -> object:
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    thread.join(120)
    return results[0]


def test_a_second_thread_is_turned_away_and_changes_nothing(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, leave = threading.Event(), threading.Event()
    real = Session.round

    def slow(self: Session) -> object:
        entered.set()
        assert leave.wait(120)
        return real(self)

    session, other = caller.begun(PROMPT), caller.begun(PROMPT)
    assert call("spx_session_rewind", session, 99) is Status.INVALID_ARGUMENT
    said = last_error(session)
    other_answer = run_round(other)[0]
    monkeypatch.setattr(Session, "round", slow)
    answer: list[list[int]] = []
    thread = threading.Thread(target=lambda: answer.append(run_round(session)[0]))
    thread.start()
    assert entered.wait(120)
    try:
        for name, rest in (
            ("spx_session_reset", ()),
            ("spx_session_close", ()),
            ("spx_session_length", (one(),)),
            ("spx_session_append", (np.array([1]), 1)),
        ):
            assert call(name, session, *rest) is Status.SESSION_BUSY, name
            assert "one session per thread" in last_error()
        assert call("spx_engine_close", caller.engine) is Status.WRONG_STATE
        succeed("spx_session_length", other, one())
    finally:
        leave.set()
        thread.join(120)
    assert answer == [other_answer]
    assert last_error(session) == said


def test_each_thread_has_its_own_last_error(caller: Caller) -> None:
    assert call("spx_session_reset", 0) is Status.INVALID_HANDLE
    mine = last_error()
    assert in_thread(last_error) == ""
    assert in_thread(lambda: (call("spx_engine_open", b"", 0, None, 0, one()), last_error())[1]) != mine
    assert last_error() == mine


def test_asking_for_an_error_leaves_it(caller: Caller) -> None:
    assert call("spx_session_rewind", caller.begun(PROMPT), 99) is Status.INVALID_ARGUMENT
    mine = last_error()
    assert "cannot rewind to 99" in mine
    assert call("spx_last_error", 10**9, np.zeros(1, np.uint8), 1, one()) is Status.INVALID_HANDLE
    succeed("spx_engine_name", caller.engine, np.zeros(9, np.uint8), 9, one())
    assert last_error() == mine
    assert last_error(caller.engine) == ""
