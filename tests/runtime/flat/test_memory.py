"""Which memory the entries take for a pointer, and what a short buffer costs: nothing."""

import ctypes
from array import array
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
    generate,
    last_error,
    one,
    run_round,
    sampling,
    succeed,
)
from tests.runtime.scripted_engine import VOCAB, reference_decode


def read_only(values: list[int]) -> np.ndarray[Any, Any]:
    memory = np.array(values)
    memory.flags.writeable = False
    return memory


@pytest.mark.parametrize(
    ("ids", "count", "said"),
    [
        (np.array([1, 2], np.int32), 2, "int32, expected int64"),
        (np.array([1.0, 2.0]), 2, "float64, expected int64"),
        (np.array([1, 2]).astype(">i8"), 2, "expected int64"),
        (np.arange(8)[::2], 2, "not C-contiguous"),
        (np.asfortranarray(np.zeros((3, 3), np.int64)), 2, "not C-contiguous"),
        (np.frombuffer(bytearray(17), np.int64, 2, 1), 2, "not aligned"),
        (np.array([1, 2]), 3, "holds 2 elements, count says 3"),
        (np.array([1, 2]), -1, "count is -1, expected 0 or more"),
        (np.array([1, 2]), 2**63, "count is outside int64_t"),
        (np.array([1, 2]), 1.5, "count is of type float, expected an integer"),
        (np.array([1, 2]), None, "count is of type NoneType"),
        (None, 1, "ids is NULL"),
        ([1, 2], 2, "ids is of type list, expected host memory"),
        ("12", 2, "ids is of type str"),
        (7, 1, "ids is of type int"),
        (b"\1" * 16, 2, "uint8, expected int64"),
        (np.array([object()]), 1, "object, expected int64"),
        (np.array([1, VOCAB]), 2, f"token id {VOCAB} at index 1"),
        (np.array([1, -1]), 2, "token id -1 at index 1"),
    ],
)
def test_memory_that_does_not_fit_is_refused(caller: Caller, ids: object, count: object, said: str) -> None:
    session = caller.open()
    assert call("spx_session_append", session, ids, count) is Status.INVALID_ARGUMENT
    assert said in last_error(session) == last_error()


def test_no_ids_are_an_empty_prompt(caller: Caller) -> None:
    session = caller.open()
    assert call("spx_session_append", session, None, 0) is Status.EMPTY_PROMPT
    assert call("spx_session_begin", session, *begin_arguments()) is Status.EMPTY_PROMPT


@pytest.mark.parametrize(
    "memory",
    [
        np.array([1, 2, 3]),
        np.array([[1, 2, 3]]),
        array("q", [1, 2, 3]),
        memoryview(array("q", [1, 2, 3])),
        (ctypes.c_int64 * 3)(1, 2, 3),
        read_only([1, 2, 3]),
    ],
    ids=lambda memory: type(memory).__name__,
)
def test_any_host_memory_of_the_dtype_will_do(caller: Caller, memory: object) -> None:
    session = caller.open()
    succeed("spx_session_append", session, memory, 3)
    assert committed(session) == [1, 2, 3]


def test_host_tensors_are_taken_by_dlpack(caller: Caller) -> None:
    torch = pytest.importorskip("torch")
    session = caller.open()
    succeed("spx_session_append", session, torch.tensor([1, 2, 3]), 3)
    tokens, count = torch.zeros(3, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    succeed("spx_session_tokens", session, 0, tokens, 3, count)
    assert tokens.tolist() == [1, 2, 3] and count.item() == 3
    strided = torch.arange(8)[::2]
    assert call("spx_session_append", session, strided, 2) is Status.INVALID_ARGUMENT
    needing_gradients = torch.zeros(3, requires_grad=True)
    assert call("spx_session_append", session, needing_gradients, 2) is Status.INVALID_ARGUMENT


def test_device_tensors_are_refused(caller: Caller) -> None:
    class OnDevice:
        def __dlpack__(self, **_: object) -> None:
            raise AssertionError("never asked for")

        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 0

    session = caller.open()
    assert call("spx_session_append", session, OnDevice(), 1) is Status.INVALID_ARGUMENT
    assert "on a device" in last_error(session)


@pytest.mark.parametrize("position", [1, 3, 6])
def test_results_need_memory_that_can_be_written(caller: Caller, position: int) -> None:
    session = caller.begun(PROMPT)
    arguments: list[Any] = [session, np.zeros(5, np.int64), 5, one(), None, None, one(np.int32)]
    arguments[position].flags.writeable = False
    assert call("spx_session_round", *arguments) is Status.INVALID_ARGUMENT
    assert "read-only" in last_error(session)
    arguments[position] = None
    assert call("spx_session_round", *arguments) is Status.INVALID_ARGUMENT
    assert run_round(session)[0] == reference_decode(caller.language, PROMPT, 1, GREEDY)


def test_a_short_buffer_tells_its_size_and_nothing_is_lost(caller: Caller) -> None:
    session = caller.begun(PROMPT)
    tokens, count, finish = np.zeros(5, np.int64), one(), one(np.int32)
    for entry, middle in (("spx_session_round", (None, None)), ("spx_session_generate", ())):
        for capacity in (0, 4):
            count[0] = 77
            status = call(entry, session, tokens, capacity, count, *middle, finish)
            assert status is Status.BUFFER_TOO_SMALL
            assert count[0] == 5 and finish[0] == 77 and not tokens.any()
    assert (
        generate(session, 20)[0]
        == reference_decode(caller.language, PROMPT, 20, GREEDY)[: len(committed(session)) - 5]
    )
    held = committed(session)
    short = np.full(len(held) - 1, 77, np.int64)
    assert call("spx_session_tokens", session, 0, short, short.size, count) is Status.BUFFER_TOO_SMALL
    assert count[0] == len(held) and (short == 77).all()


def test_short_logprob_buffers_tell_both_sizes(caller: Caller) -> None:
    session = caller.begun(PROMPT, sampling(logprobs=3, max_tokens=4))
    generate(session, 4)
    logprobs, ids, values, count, top = np.zeros(4), np.zeros(12, np.int64), np.zeros(12), one(), one()
    for room, top_room in ((3, 12), (4, 11), (0, 0)):
        status = call("spx_session_logprobs", session, logprobs, room, count, ids, values, top_room, top)
        assert status is Status.BUFFER_TOO_SMALL and (count[0], top[0]) == (4, 12)
        assert not logprobs.any() and not ids.any() and not values.any()
    succeed("spx_session_logprobs", session, logprobs, 4, count, ids, values, 12, top)


def test_text_buffers_are_measured_with_their_nul(caller: Caller) -> None:
    needed, text = one(), np.full(8, 77, np.uint8)
    assert call("spx_engine_name", caller.engine, text, 8, needed) is Status.BUFFER_TOO_SMALL
    assert needed[0] == 9 and (text == 77).all()
    buffer = ctypes.create_string_buffer(9)
    succeed("spx_engine_name", caller.engine, buffer, 9, needed)
    assert buffer.value == b"scripted"
    assert call("spx_engine_name", caller.engine, bytes(9), 9, needed) is Status.INVALID_ARGUMENT


@pytest.mark.parametrize("change", [-1, 1, -flat.PARAMS.itemsize])
def test_a_structure_of_another_version_is_refused(caller: Caller, change: int) -> None:
    session = caller.begun(PROMPT)
    params, *arrays = begin_arguments(sampling())
    arrays[0] = flat.PARAMS.itemsize + change
    assert call("spx_session_begin", session, params, *arrays) is Status.INVALID_ARGUMENT
    assert "built against another version" in last_error(session)
    stats = np.zeros(flat.STATS.itemsize - 1, np.uint8)
    assert call("spx_session_stats", session, stats, flat.STATS.itemsize) is Status.INVALID_ARGUMENT
    assert call("spx_session_stats", session, None, flat.STATS.itemsize) is Status.INVALID_ARGUMENT
