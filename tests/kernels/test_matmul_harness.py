"""The window product alone: bits of a row against a plain reference, widths, splits, threads and paths.

See runtime/kernels/tests/matmul_test.cpp.
"""

from pathlib import Path

import pytest

from tests.kernels.programs import output, program

pytestmark = pytest.mark.timeout(1800)  # compilers with sanitizers take minutes


def test_every_format_rounding_and_width_has_the_bits_of_the_reference(run_directory: Path) -> None:
    assert "cases agree" in output([*program(run_directory, "matmul_test"), "grid"])


def test_random_shapes_have_the_bits_of_the_reference(run_directory: Path) -> None:
    assert "cases agree" in output([*program(run_directory, "matmul_test"), "fuzz", "1", "8"])


@pytest.mark.slow
@pytest.mark.parametrize("sanitize", ["address,undefined", "thread"])
def test_the_same_under_sanitizers(run_directory: Path, sanitize: str) -> None:
    command = program(run_directory, "matmul_test", sanitize=sanitize)
    assert "cases agree" in output([*command, "grid"])
    assert "cases agree" in output([*command, "fuzz", "100", "20"])


@pytest.mark.slow
def test_other_processors_have_the_bits_of_the_reference(run_directory: Path) -> None:
    command = program(run_directory, "matmul_test", cross=True)
    assert "neon" in output([*command, "paths"])
    assert "cases agree" in output([*command, "grid"])
