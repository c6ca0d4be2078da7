"""Ctrl-C ends the command in one line, also while it is still importing."""

import subprocess
import sys

import pytest

IMPORT = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
from specexport.cli import main
sys.stderr.write(str(signal.getsignal(signal.SIGINT) is signal.default_int_handler))
"""


def run(module: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", IMPORT, module], capture_output=True, text=True, check=False, timeout=120
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("module", ["click", "pydantic", "specruntime.manifest"])
def test_an_interrupted_import_is_one_line_and_130(module: str) -> None:
    assert run(module) == (130, "interrupted\n")


def test_the_handler_is_pythons_own_again_afterwards() -> None:
    assert run("no.such.module") == (0, "True")
