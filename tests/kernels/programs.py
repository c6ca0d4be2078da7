"""Test programs of the kernels alone, in C++: built by CMake, with or without sanitizers, for this host or another."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.made_once import made_once

KERNELS = Path(__file__).parents[2] / "runtime" / "kernels"
CROSS = "aarch64-linux-gnu"
_CONTAINED = {"amx": "avx512", "avx512vnni": "avxvnni"}  # by path: another whose every line it runs too
PROGRAMS = ("matmul_test", "attention_test")  # built together: the kernels that they test are compiled once


def program(run_directory: Path, name: str, *, sanitize: str = "", cross: bool = False) -> list[str]:
    """The command that runs the program `name` of runtime/kernels/tests; skips the test where nothing builds it."""
    for tool in ("cmake", f"{CROSS}-g++" if cross else "c++", *(["qemu-aarch64"] if cross else [])):
        if shutil.which(tool) is None:
            pytest.skip(f"no {tool} on this host")
    settings = [f"-DSPECRUNTIME_KERNELS_SANITIZE={sanitize}"]
    if sanitize:
        settings.append(f"-DSPECRUNTIME_KERNELS_PATHS={';'.join(_sanitized_paths(run_directory, sanitize))}")
    if cross:
        settings += ["-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64"]
        settings += [f"-DCMAKE_CXX_COMPILER={CROSS}-g++"]

    def build(place: Path) -> None:
        _done(["cmake", "-S", str(KERNELS), "-B", str(place), *settings])
        _done(["cmake", "--build", str(place), "--target", *PROGRAMS, "--parallel", "2"])

    kind = f"{'-' + sanitize if sanitize else ''}{'-aarch64' if cross else ''}"
    binary = made_once(run_directory / f"kernels{kind}", build) / name
    return ["qemu-aarch64", "-L", f"/usr/{CROSS}", str(binary)] if cross else [str(binary)]


def _sanitized_paths(run_directory: Path, sanitize: str) -> list[str]:
    """Those of this host's paths, best first, whose code no other one of them contains.

    Threads run in the code that all paths share, and only `amx` has memory of its own for each part of a product.
    """
    here = output([*program(run_directory, "matmul_test"), "paths"]).split()
    assert here, "no path of the kernels runs on this host"
    if sanitize == "thread":
        return here[:1]
    return [name for name in here if name not in {_CONTAINED.get(other) for other in here}]


def output(command: list[str]) -> str:
    """What a program prints; the test fails where the program does."""
    return _done(command)


def _done(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=1700)
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}\n{done.stderr}"
    return done.stdout
