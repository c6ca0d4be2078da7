"""Random calls with random arguments: a status of the entry's row comes back, and the session is what the row says."""

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specruntime import flat
from specruntime.abi import ENTRIES, Argument, SessionState
from specruntime.abi.table import DTYPES
from specruntime.sampling.params import SamplingParams
from tests.runtime.flat.flat_calls import (
    Caller,
    begin_arguments,
    call,
    committed,
    generate,
    state_of,
    succeed,
)
from tests.runtime.scripted_engine import VOCAB, reference_decode


class Hostile:
    """Fails whatever is asked of it."""

    def __getattr__(self, name: str) -> object:
        raise RuntimeError(name)

    def __repr__(self) -> str:
        raise RuntimeError("repr")

    def __index__(self) -> int:
        raise RuntimeError("index")


ANYTHING: st.SearchStrategy[object] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-2, 6),
    st.sampled_from([2**31, 2**63 - 1, -(2**63), 2**64]),
    st.floats(),
    st.text(max_size=3),
    st.binary(max_size=40),
    st.builds(bytearray, st.integers(0, 200)),
    st.builds(Hostile),
    st.builds(object),
    st.lists(st.integers(0, 5), max_size=3),
    st.builds(
        np.zeros, st.integers(0, 9), st.sampled_from([np.int64, np.int32, np.float64, np.uint8, np.bool_])
    ),
    st.builds(lambda n: np.arange(2 * n)[::2], st.integers(2, 5)),
    st.builds(lambda: np.array([object()])),
    st.builds(lambda: np.zeros((2, 0, 3))),
    st.builds(lambda: memoryview(bytearray(64)).cast("q")[::-1]),
)
STRUCTURES = {
    "spx_options": flat.OPTIONS,
    "spx_info": flat.INFO,
    "spx_params": flat.PARAMS,
    "spx_stats": flat.STATS,
}


def fitting(argument: Argument, handles: list[int]) -> st.SearchStrategy[object]:
    """Values near what the argument takes."""
    if argument.is_handle:
        return st.sampled_from(handles)
    if not argument.pointer:
        return st.integers(-1, 9) | st.sampled_from([dtype.itemsize for dtype in STRUCTURES.values()])
    if argument.ctype in STRUCTURES:
        layout = STRUCTURES[argument.ctype]
        garbage = st.binary(min_size=layout.itemsize, max_size=layout.itemsize).map(bytearray)
        return garbage | st.builds(np.zeros, st.just(1), st.just(layout)) | st.none()
    if argument.ctype == "char":
        return st.binary(max_size=9).map(bytearray)
    numbers = st.floats() if argument.ctype == "double" else st.integers(-1, VOCAB)
    dtype = DTYPES[argument.ctype]
    return st.lists(numbers, min_size=1, max_size=9).map(lambda values: np.array(values).astype(dtype))


@st.composite
def calls(draw: st.DrawFn, handles: list[int]) -> tuple[str, list[object]]:
    """An entry and arguments of which most fit."""
    entry = ENTRIES[draw(st.sampled_from([name for name in ENTRIES if name != "spx_abi_version"]))]
    wild = draw(st.integers(0, len(entry.arguments)))
    values = [draw(fitting(argument, handles)) for argument in entry.arguments]
    if wild < len(values) and draw(st.booleans()):
        values[wild] = draw(ANYTHING)
    return entry.name, values


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_random_calls_get_a_status_and_leave_what_the_table_says(
    data: st.DataObject, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller = Caller(monkeypatch)
    bystander = caller.begun([5, 9, 2])
    handles = [caller.engine, caller.begun([1, 2, 3]), caller.open(), 0, 10**12]
    monkeypatch.setattr("specruntime.flat.engines.open_bundle", _no_bundle)
    for _ in range(data.draw(st.integers(1, 12))):
        name, arguments = data.draw(calls(handles))
        status = call(name, *arguments)
        assert status is not flat.Status.INTERNAL or name == "spx_engine_open"
    assert state_of(bystander) is SessionState.ANSWERING
    answer, _ = generate(bystander, 12)
    assert answer == reference_decode(caller.language, [5, 9, 2], len(answer), SamplingParams())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_valid_calls_in_any_order_decode_like_a_clean_run(
    data: st.DataObject, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller = Caller(monkeypatch)
    session = caller.open()
    tokens: list[int] = []
    for _ in range(data.draw(st.integers(1, 8))):
        match data.draw(st.sampled_from(["append", "rewind", "reset", "answer"])):
            case "append" if len(tokens) < 40:
                added = data.draw(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=9))
                succeed("spx_session_append", session, np.array(added), len(added))
                tokens += added
            case "rewind":
                tokens = tokens[: data.draw(st.integers(0, len(tokens)))]
                succeed("spx_session_rewind", session, len(tokens))
            case "reset":
                succeed("spx_session_reset", session)
                tokens = []
            case "answer" if 0 < len(tokens) < 55:
                succeed("spx_session_begin", session, *begin_arguments())
                answer, _ = generate(session, data.draw(st.integers(5, 9)))
                assert answer == reference_decode(caller.language, tokens, len(answer), SamplingParams())
                tokens += answer
        assert committed(session) == tokens


def _no_bundle(*_: Any, **__: Any) -> None:
    raise OSError("no bundle here")
