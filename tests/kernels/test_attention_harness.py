"""Window attention alone: bits of a row against windows, trees, batches, threads and paths (see attention_test.cpp)."""

from pathlib import Path

import pytest

from tests.kernels.programs import output, program

pytestmark = pytest.mark.timeout(1800)  # compilers with sanitizers take minutes


def test_rows_have_the_same_bits_however_they_are_computed(run_directory: Path) -> None:
    printed = output([*program(run_directory, "attention_test"), "6", "1"])
    assert "equal bits" in printed


@pytest.mark.slow
@pytest.mark.parametrize("sanitize", ["address,undefined", "thread"])
def test_the_same_under_sanitizers(run_directory: Path, sanitize: str) -> None:
    printed = output([*program(run_directory, "attention_test", sanitize=sanitize), "20", "1000"])
    assert "equal bits" in printed


@pytest.mark.slow
def test_other_processors_give_the_same_bits(run_directory: Path) -> None:
    few = ["600", "7", "2", "6"]
    here = output([*program(run_directory, "attention_test"), *few])
    there = output([*program(run_directory, "attention_test", cross=True), *few])
    assert "neon" in there
    assert here.split("digest")[1] == there.split("digest")[1]
