"""Fresh virtual environments, and the wheels that go into them."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import REPOSITORY


def build_wheel(project: Path, into: Path) -> Path:
    """The project's wheel, built with the tools installed here."""
    command = ("pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", into, project)
    run_module(*command)
    (wheel,) = into.glob("*.whl")
    return wheel


def run_module(*command: str | Path, timeout: float = 550) -> None:
    """`python -m` with this interpreter; it must succeed."""
    done = subprocess.run(
        [sys.executable, "-m", *map(str, command)], capture_output=True, text=True, timeout=timeout
    )
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}\n{done.stderr}"


@dataclass(frozen=True)
class Environment:
    """A virtual environment with what the tests install into it, and nothing else: not even pip."""

    python: Path

    def install(self, *requirements: str) -> None:
        constraints = REPOSITORY / "constraints.txt"
        options = ("--quiet", "--no-compile", "-c", constraints)
        run_module("pip", "--python", self.python, "install", *options, *requirements)


def new_environment(place: Path) -> Environment:
    run_module("venv", "--without-pip", place)
    return Environment(place / "bin" / "python")
