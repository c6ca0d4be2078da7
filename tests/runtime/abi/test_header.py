"""The table, the functions, the C header and the documentation say the same."""

import inspect
import subprocess
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
from numpy.typing import NDArray

from specruntime import flat
from specruntime.abi import COMMON, ENTRIES, ENUMERATIONS, STRUCTURES, Argument, Entry, Status, outcomes
from specruntime.abi.header import header
from specruntime.abi.reference import reference
from specruntime.abi.table import DTYPES
from specruntime.flat.records import OpenEngine, SessionRecord

REPOSITORY = Path(__file__).resolve().parents[3]
HEADER = REPOSITORY / "runtime" / "include" / "specruntime.h"
REFERENCE = REPOSITORY / "docs" / "flat-api.md"


def test_the_header_is_generated_from_the_table() -> None:
    assert HEADER.read_text() == header(), (
        "run: python -m specruntime.abi header > runtime/include/specruntime.h"
    )


def test_the_reference_is_generated_from_the_table() -> None:
    assert REFERENCE.read_text() == reference(), "run: python -m specruntime.abi reference > docs/flat-api.md"


def test_every_entry_is_a_function_and_every_function_an_entry() -> None:
    assert {name for name in vars(flat) if name.startswith("spx_")} == set(ENTRIES)
    assert {name for name in flat.__all__ if name.startswith("spx_")} == set(ENTRIES)


def expected_type(argument: Argument) -> Any:
    """What the function behind an entry is given for the argument."""
    if argument.is_handle:
        return OpenEngine if argument.ctype == "spx_engine" else SessionRecord
    if not argument.pointer:
        return int
    if argument.ctype not in DTYPES:
        return NDArray[np.void] | None if argument.optional else NDArray[np.void]
    if argument.ctype == "char" and argument.direction == "in":
        return str
    return NDArray[DTYPES[argument.ctype].type]  # type: ignore[misc]  # chosen by the table


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=lambda entry: entry.name)
def test_functions_have_the_arguments_of_the_table(entry: Entry) -> None:
    function = inspect.unwrap(getattr(flat, entry.name))
    assert list(inspect.signature(function).parameters) == [argument.name for argument in entry.arguments]
    hints = get_type_hints(function)
    returned = hints.pop("return")
    assert returned is (type(None) if entry.returns == "spx_status" else int)
    assert hints == {argument.name: expected_type(argument) for argument in entry.arguments}


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=lambda entry: entry.name)
def test_rows_are_complete(entry: Entry) -> None:
    assert entry.purpose.endswith(".")
    names = [argument.name for argument in entry.arguments]
    assert len(set(names)) == len(names)
    assert [a.name for a in entry.arguments[1:] if a.is_handle] == []
    for argument in entry.arguments:
        assert argument.doc
        assert argument.direction == "in" or argument.pointer
        assert argument.length is None or argument.length in names
        if argument.pointer and argument.direction == "in":
            assert argument.length is not None, f"{argument.name}: C passes single values by value"
    if entry.handle is not None:
        assert Status.INVALID_HANDLE in outcomes(entry)
        assert (Status.SESSION_BUSY in outcomes(entry)) == (entry.handle.ctype == "spx_session")
    if any(argument.direction == "out" and argument.length == "capacity" for argument in entry.arguments):
        assert Status.BUFFER_TOO_SMALL in outcomes(entry)
    for outcome in entry.outcomes:
        assert outcome.when or outcome.status is Status.OK


def test_every_status_is_documented_and_all_but_widths_are_returned_somewhere() -> None:
    for enumeration in ENUMERATIONS:
        assert set(enumeration.docs) == set(enumeration.members)
    returned = {status for entry in ENTRIES.values() for status in outcomes(entry)}
    assert set(Status) - returned == {Status.WIDTH_EXCEEDED}  # for batches; the number is kept
    assert {outcome.status for outcome in COMMON} <= returned


def test_structures_have_no_padding_and_no_pointers() -> None:
    for structure in STRUCTURES:
        layout = structure.dtype.fields
        assert layout is not None
        sizes = [layout[field.name][0].itemsize for field in structure.fields]
        assert structure.dtype.itemsize == sum(sizes)
        assert all(field.ctype in DTYPES for field in structure.fields)


def run_compiler(compiler: list[str], source: str) -> None:
    command = [*compiler, "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I", str(HEADER.parent), "-"]
    done = subprocess.run(command, input=source, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "compiler",
    [["gcc", "-std=c99", "-pedantic", "-x", "c"], ["g++", "-std=c++11", "-x", "c++"]],
    ids=["c", "c++"],
)
def test_the_header_compiles(compiler: list[str]) -> None:
    run_compiler(compiler, '#include "specruntime.h"\n#include "specruntime.h"\n')


def test_c_lays_structures_out_as_numpy_does() -> None:
    checks = []
    for structure in STRUCTURES:
        layout = structure.dtype.fields
        assert layout is not None
        conditions = [f"sizeof({structure.name}) == {structure.dtype.itemsize}"]
        conditions += [f"offsetof({structure.name}, {name}) == {place[1]}" for name, place in layout.items()]
        checks += [
            f"_Static_assert({condition}, {condition!a});".replace("'", '"') for condition in conditions
        ]
    run_compiler(
        ["gcc", "-std=c11", "-x", "c"],
        "\n".join(["#include <stddef.h>", '#include "specruntime.h"', *checks]),
    )


def test_a_wrong_layout_would_be_found() -> None:
    source = '#include "specruntime.h"\n_Static_assert(sizeof(spx_params) == 1, "");'
    with pytest.raises(AssertionError, match="static assertion failed"):
        run_compiler(["gcc", "-std=c11", "-x", "c"], source)
