"""Handles, parameters and options that the entries refuse."""

from typing import Any

import numpy as np
import pytest

from specruntime import flat
from specruntime.abi import Status
from tests.runtime.flat.flat_calls import (
    GREEDY,
    PROMPT,
    Caller,
    begin_arguments,
    call,
    committed,
    last_error,
    one,
    run_round,
    sampling,
    succeed,
)
from tests.runtime.scripted_engine import VOCAB, reference_decode


@pytest.mark.parametrize(
    "handle", [0, -1, 10**9, 2**63 - 1, 2**64, "engine", None, 1.0, True], ids=lambda handle: repr(handle)
)
def test_what_is_no_session_is_refused(caller: Caller, handle: object) -> None:
    wrong = caller.engine if handle == "engine" else handle
    status = call("spx_session_reset", wrong)
    assert status in (Status.INVALID_HANDLE, Status.INVALID_ARGUMENT)
    assert last_error()


def test_a_closed_handle_is_invalid_for_every_entry(caller: Caller) -> None:
    session = caller.begun(PROMPT)
    calls: list[tuple[str, tuple[object, ...]]] = [
        ("spx_session_append", (np.array([1]), 1)),
        ("spx_session_begin", begin_arguments()),
        ("spx_session_round", (np.zeros(5, np.int64), 5, one(), None, None, one(np.int32))),
        ("spx_session_generate", (np.zeros(5, np.int64), 5, one(), one(np.int32))),
        ("spx_session_logprobs", (np.zeros(5), 5, one(), None, None, 0, None)),
        ("spx_session_text", (None, 0, one())),
        ("spx_session_tokens", (0, None, 0, one())),
        ("spx_session_length", (one(),)),
        ("spx_session_state", (one(np.int32),)),
        ("spx_session_rewind", (0,)),
        ("spx_session_reset", ()),
        ("spx_session_stats", (np.zeros(1, flat.STATS), flat.STATS.itemsize)),
        ("spx_session_seed", (one(np.uint64),)),
        ("spx_session_close", ()),
    ]
    assert {name for name, _ in calls} | {"spx_session_open"} == {n for n in flat.__all__ if "session" in n}
    succeed("spx_session_close", session)
    for name, arguments in calls:
        assert call(name, session, *arguments) is Status.INVALID_HANDLE, name
    succeed("spx_engine_close", caller.engine)
    for name in ("spx_engine_close", "spx_engine_info", "spx_engine_eos", "spx_session_open"):
        arguments = {
            "spx_engine_close": (),
            "spx_engine_info": (np.zeros(1, flat.INFO), flat.INFO.itemsize),
            "spx_engine_eos": (None, 0, one()),
            "spx_session_open": (1, one()),
        }[name]
        assert call(name, caller.engine, *arguments) is Status.INVALID_HANDLE, name


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        *(
            ({name: np.nan}, f"{name} is nan")
            for name in ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty")
        ),
        ({"frequency_penalty": np.inf}, "frequency_penalty is inf"),
        ({"temperature": -1}, "temperature is -1.0"),
        ({"top_k": -1}, "top_k is -1"),
        ({"max_tokens": -1}, "max_tokens is -1"),
        ({"min_tokens": -1}, "min_tokens is -1"),
        ({"max_tokens": 2, "min_tokens": 3}, "min_tokens is 3"),
        ({"logprobs": -2}, "logprobs is -2, expected -1 (none) or more"),
        ({"logprobs": VOCAB + 1}, f"logprobs is {VOCAB + 1}"),
        ({"accept": 2}, "accept is 2, expected one of SPX_ACCEPT_*"),
        ({"ignore_eos": 2}, "ignore_eos is 2, expected 0 or 1"),
        ({"text": 1}, "has no tokenizer"),
        ({"text": -1}, "text is -1, expected 0 or 1"),
    ],
)
def test_parameters_out_of_range_are_named(caller: Caller, fields: dict[str, float], said: str) -> None:
    session = caller.begun(PROMPT)
    first, _ = run_round(session)
    status = call("spx_session_begin", session, *begin_arguments(sampling(**fields)))
    assert status is Status.INVALID_ARGUMENT
    assert said in last_error(session)
    assert first + run_round(session)[0] == reference_decode(
        caller.language, PROMPT, len(committed(session)) - 5, GREEDY
    )


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"stop_ids": [-1]}, "stop_token_ids"),
        ({"bias_ids": [1], "biases": [np.nan]}, "logit_bias"),
        ({"bias_ids": [1], "biases": [np.inf]}, "logit_bias"),
        ({"bias_ids": [VOCAB], "biases": [1.0]}, str(VOCAB)),
        ({"bias_ids": [1, 1], "biases": [1.0, 2.0]}, "names a token twice"),
    ],
)
def test_stop_and_bias_arrays_are_checked(caller: Caller, arrays: dict[str, Any], said: str) -> None:
    session = caller.begun(PROMPT)
    assert call("spx_session_begin", session, *begin_arguments(**arrays)) is Status.INVALID_ARGUMENT
    assert said in last_error(session)


@pytest.mark.parametrize(
    ("path", "fields", "said"),
    [
        (b"", {}, "path is ''"),
        (b"a\0b", {}, "without NUL"),
        (b"\xff", {}, "path is not UTF-8 at byte 0"),
        (b"a", {"threads": -1}, "threads is -1"),
        (b"a", {"verify": 2}, "verify is 2, expected 0 or 1"),
        (b"a", {"provider": b"\xff"}, "provider is not ASCII"),
    ],
)
def test_an_engine_is_opened_by_a_path_and_known_options(
    path: bytes, fields: dict[str, Any], said: str
) -> None:
    options, engine = np.zeros(1, flat.OPTIONS), one()
    succeed("spx_options_init", options, options.nbytes)
    for name, value in fields.items():
        options[name] = value
    status = call("spx_engine_open", path, len(path), options, options.nbytes, engine)
    assert status is Status.INVALID_ARGUMENT and said in last_error() and engine[0] == 77


def test_text_needs_a_tokenizer(caller: Caller) -> None:
    arguments = (caller.engine, b"ab", 2, None, 0, one())
    assert call("spx_text_encode", *arguments) is Status.INVALID_ARGUMENT
    assert "no tokenizer" in last_error(caller.engine)
    assert call("spx_session_text", caller.begun(PROMPT), None, 0, one()) is Status.WRONG_STATE


def test_rounds_need_an_answer(caller: Caller) -> None:
    session = caller.begun(PROMPT, sampling(max_tokens=1))
    run_round(session, room=1)
    arguments = (session, np.zeros(5, np.int64), 5, one(), None, None, one(np.int32))
    assert call("spx_session_round", *arguments) is Status.WRONG_STATE  # ended
    succeed("spx_session_append", session, np.array([1]), 1)
    assert call("spx_session_round", *arguments) is Status.WRONG_STATE  # not begun


def test_wrong_arity_is_an_argument_error() -> None:
    assert flat.spx_session_reset() is Status.INVALID_ARGUMENT
    assert flat.spx_session_reset(1, 2, session=3) is Status.INVALID_ARGUMENT
