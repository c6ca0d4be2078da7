"""The wheel: built without a network, installed into an empty environment, used by ONNX Runtime there."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

PROJECT = REPOSITORY / "runtime" / "kernels"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(shutil.which(os.environ.get("CXX", "c++")) is None, reason="needs a C++ compiler"),
]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    run(
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        str(out),
        str(PROJECT),
    )
    (found,) = out.glob("*.whl")
    return found


def test_it_is_one_wheel_a_platform(wheel: Path) -> None:
    _, _, python, abi, platform = wheel.stem.split("-")
    assert (python, abi) == ("py3", "none") and platform != "any"
    names = zipfile.ZipFile(wheel).namelist()
    libraries = [name for name in names if "libspecruntime_kernels" in name]
    assert len(libraries) == 1
    assert not [name for name in names if name.endswith((".cpp", ".h", ".o"))]


def test_it_runs_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "site"
    run(
        sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--target", str(target), str(wheel)
    )
    code = (
        "import specruntime_kernels as kernels\n"
        "assert kernels.path_name() in kernels.paths()\n"
        "print(kernels.library_path(), kernels.version(), kernels.OPERATORS, kernels.LAYOUT)\n"
    )
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
        "PYTHONPATH": str(target)
    }
    said = run(sys.executable, "-S", "-c", code, env=alone).split()
    assert said[0].startswith(str(target)) and said[1:] == [wheel.stem.split("-")[1], "1", "1"]
    code = (
        "import onnxruntime, specruntime_kernels\n"
        "settings = onnxruntime.SessionOptions()\n"
        "settings.register_custom_ops_library(str(specruntime_kernels.library_path()))\n"
    )
    run(sys.executable, "-c", code, env=alone)


def test_the_source_distribution_holds_all_that_a_build_reads(tmp_path: Path) -> None:
    run(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", str(tmp_path), str(PROJECT))
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        names = {
            Path(name).relative_to(archive.name.removesuffix(".tar.gz")).as_posix()
            for name in files.getnames()
        }
    sources = {
        path.relative_to(PROJECT).as_posix()
        for part in ("src", "tests")
        for path in (PROJECT / part).rglob("*.*")
        if path.is_file()
    }
    assert sources <= names
    assert {"CMakeLists.txt", "pyproject.toml", "specruntime_kernels/__init__.py"} <= names


def run(*command: str, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}\n{done.stderr}"
    return done.stdout
