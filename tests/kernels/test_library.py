"""The shared library by itself: what it exports, what it says of paths, and which entries of ONNX Runtime it calls."""

import ctypes
import ctypes.util
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from ctypes import CFUNCTYPE, POINTER, byref, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_void_p
from pathlib import Path
from types import ModuleType
from typing import Any

import onnxruntime
import pytest

from tests.conftest import REPOSITORY

HEADER = REPOSITORY / "runtime" / "kernels" / "src" / "ort" / "ort_api.h"


@pytest.fixture(name="kernels")
def _kernels() -> ModuleType:
    found: ModuleType = pytest.importorskip("specruntime_kernels")
    return found


def test_the_best_path_is_one_of_those_the_processor_has(kernels: ModuleType) -> None:
    paths = kernels.paths()
    usable = [path for path, lacking in paths.items() if lacking is None]
    assert kernels.path_name() == kernels.path_name("auto") == usable[0]
    assert all(kernels.path_name(path) == path for path in usable)
    for path, lacking in paths.items():
        assert lacking is None or (lacking and "\n" not in lacking), path


def test_a_path_that_is_not_there_is_refused_with_words(kernels: ModuleType) -> None:
    with pytest.raises(ValueError, match=r"no path called sse2: choose one of .*avx2"):
        kernels.path_name("sse2")
    lacking = [path for path, words in kernels.paths().items() if words is not None]
    with pytest.raises(ValueError, match=lacking[0]):
        kernels.path_name(lacking[0])


@pytest.mark.skipif(shutil.which("nm") is None or sys.platform != "linux", reason="needs nm of Linux")
def test_it_exports_its_entry_points_alone_and_links_neither_python_nor_onnxruntime(
    kernels: ModuleType,
) -> None:
    library = str(kernels.library_path())
    symbols = run("nm", "-D", "--defined-only", library).split()[2::3]
    assert "RegisterCustomOps" in symbols
    assert all(name == "RegisterCustomOps" or name.startswith("specruntime_kernels_") for name in symbols)
    needed = re.findall(r"NEEDED.*\[(.*)\]", run("readelf", "-d", library))
    assert not [name for name in needed if "python" in name or "onnxruntime" in name or "stdc++" in name]


UNLOADABLE = {
    "of another processor": b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\x00\xb7\x00" + bytes(44),
    "of 32 bits": b"\x7fELF\x01\x01\x01" + bytes(57),
    "that is text": b"not a library\n",
    "that is empty": b"",
}


@pytest.mark.parametrize("case", UNLOADABLE)
def test_a_library_that_does_not_load_raises_os_error(kernels: ModuleType, case: str, tmp_path: Path) -> None:
    package = copied(kernels, tmp_path)
    Path(package.__file__ or "").with_name(kernels.library_path().name).write_bytes(UNLOADABLE[case])
    with pytest.raises(OSError):
        package.version()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read every file")
def test_a_library_without_permission_raises_os_error(kernels: ModuleType, tmp_path: Path) -> None:
    package = copied(kernels, tmp_path)
    library = Path(package.__file__ or "").with_name(kernels.library_path().name)
    shutil.copy(kernels.library_path(), library)
    library.chmod(0)
    with pytest.raises(OSError):
        package.version()


def test_a_library_of_something_else_raises_os_error(kernels: ModuleType, tmp_path: Path) -> None:
    package = copied(kernels, tmp_path)
    other = ctypes.util.find_library("m")
    source = next(Path("/lib").glob(f"*/{other}"), None) if other else None
    if source is None:
        pytest.skip("found no other library")
    shutil.copy(source, Path(package.__file__ or "").with_name(kernels.library_path().name))
    with pytest.raises(OSError, match="is not the library of specruntime-kernels"):
        package.version()


def test_a_missing_library_raises_file_not_found(kernels: ModuleType, tmp_path: Path) -> None:
    package = copied(kernels, tmp_path)
    with pytest.raises(FileNotFoundError, match="install specruntime-kernels again"):
        package.version()


def copied(kernels: ModuleType, directory: Path) -> ModuleType:
    """The package's code in a directory without its library."""
    file = directory / "__init__.py"
    shutil.copy(kernels.__file__ or "", file)
    spec = importlib.util.spec_from_file_location("copied_kernels", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


# ---- entries of ONNX Runtime's table, by the indices of ort_api.h


class ApiBase(ctypes.Structure):
    _fields_ = [("get_api", CFUNCTYPE(c_void_p, c_uint32)), ("version", CFUNCTYPE(c_void_p))]


def entries() -> dict[str, int]:
    text = HEADER.read_text().split("enum Entry", 1)[1].split("};", 1)[0]
    return {name: int(index) for name, index in re.findall(r"k(\w+) = (\d+),", text)}


def api_version() -> int:
    return int(re.findall(r"kApiVersion = (\d+)", HEADER.read_text())[0])


# A library whose only operator is to keep what ONNX Runtime hands to libraries of operators.
KEEPER = """
static const void *kept;
void *RegisterCustomOps(void *options, const void *base) { (void)options; kept = base; return 0; }
const void *kept_base(void) { return kept; }
"""


@pytest.fixture
def table(tmp_path: Path) -> Any:
    """Call an entry of the installed ONNX Runtime by its name in ort_api.h, or by an index."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    (tmp_path / "keeper.c").write_text(KEEPER)
    run(compiler, "-shared", "-fPIC", "-o", str(tmp_path / "keeper.so"), str(tmp_path / "keeper.c"))
    keeper = ctypes.CDLL(str(tmp_path / "keeper.so"))
    onnxruntime.SessionOptions().register_custom_ops_library(str(tmp_path / "keeper.so"))
    keeper.kept_base.restype = POINTER(ApiBase)
    base = keeper.kept_base().contents
    pointers = ctypes.cast(base.get_api(api_version()), POINTER(c_void_p))
    indices = entries()

    def call(entry: str, *arguments: Any, result: Any = c_void_p, index: int | None = None) -> Any:
        function = CFUNCTYPE(result, *(type(each) for each in arguments))
        return function(pointers[indices[entry] if index is None else index])(*arguments)

    return call


def test_statuses_are_made_and_released(table: Any) -> None:
    status = c_void_p(table("CreateStatus", c_int(2), c_char_p(b"words")))
    assert table("GetErrorCode", status, result=c_int, index=1) == 2
    assert table("GetErrorMessage", status, result=c_char_p, index=2) == b"words"
    table("ReleaseStatus", status, result=None)


def test_config_entries_and_domains_of_session_options(table: Any) -> None:
    options, domain = c_void_p(), c_void_p()
    assert table("CreateSessionOptions", byref_pointer(options), index=10) is None
    assert table("AddSessionConfigEntry", options, c_char_p(b"key"), c_char_p(b"word"), index=130) is None
    there, size, text = c_int(), c_size_t(16), ctypes.create_string_buffer(16)
    assert table("HasSessionConfigEntry", options, c_char_p(b"key"), byref_pointer(there)) is None
    assert there.value == 1
    arguments = (options, c_char_p(b"key"), ctypes.cast(text, c_void_p), byref_pointer(size))
    assert table("GetSessionConfigEntry", *arguments) is None
    assert (text.value, size.value) == (b"word", 5)
    assert table("CreateCustomOpDomain", c_char_p(b"tested"), byref_pointer(domain)) is None
    assert table("AddCustomOpDomain", options, domain) is None
    table("ReleaseSessionOptions", options, result=None, index=100)
    table("ReleaseCustomOpDomain", domain, result=None, index=101)


def test_types_and_sizes_of_a_tensor(table: Any) -> None:
    memory, value, shape, data = c_void_p(), c_void_p(), c_void_p(), c_void_p()
    assert table("CreateCpuMemoryInfo", c_int(0), c_int(0), byref_pointer(memory), index=69) is None
    floats, sizes = (ctypes.c_float * 6)(), (c_int64 * 2)(2, 3)
    made = table(
        "CreateTensorWithDataAsOrtValue", memory, ctypes.cast(floats, c_void_p), c_size_t(24),
        ctypes.cast(sizes, c_void_p), c_size_t(2), c_int(1), byref_pointer(value), index=49,
    )  # fmt: skip
    assert made is None
    assert table("GetTensorMutableData", value, byref_pointer(data)) is None
    assert data.value == ctypes.addressof(floats)
    assert table("GetTensorTypeAndShape", value, byref_pointer(shape)) is None
    kind, rank, found = c_int(), c_size_t(), (c_int64 * 2)()
    assert table("GetTensorElementType", shape, byref_pointer(kind)) is None
    assert table("GetDimensionsCount", shape, byref_pointer(rank)) is None
    assert table("GetDimensions", shape, ctypes.cast(found, c_void_p), c_size_t(2)) is None
    assert (kind.value, rank.value, list(found)) == (1, 2, [2, 3])
    table("ReleaseTensorTypeAndShapeInfo", shape, result=None)
    table("ReleaseValue", value, result=None, index=96)
    table("ReleaseMemoryInfo", memory, result=None, index=94)


# Called by every node that is opened and run, in test_operators.py: each of its results and refusals depends on them.
BY_NODES = {
    "KernelInfoGetAttributeFloat",
    "KernelInfoGetAttributeInt64",
    "KernelInfoGetAttributeString",
    "KernelInfoGetNodeName",
    "KernelInfoGetInputCount",
    "KernelInfoGetConstantInputTensor",
    "KernelContextGetInputCount",
    "KernelContextGetInput",
    "KernelContextGetOutput",
    "KernelContextParallelFor",
    "CustomOpDomainAdd",
}


def test_every_entry_is_called_by_a_test() -> None:
    here = set(re.findall(r'table\(\s*"(\w+)"', Path(__file__).read_text()))
    assert entries().keys() - here == BY_NODES


def test_an_onnxruntime_that_is_too_old_is_an_error_with_words(kernels: ModuleType) -> None:
    library = ctypes.CDLL(str(kernels.library_path()))
    said: list[bytes] = []

    def create_status(code: int, words: bytes) -> int:
        said.append(words)
        return 4711

    old_version = ctypes.create_string_buffer(b"1.16.3")
    called = CFUNCTYPE(c_void_p, c_int, c_char_p)(create_status)
    old = (c_void_p * 1)(ctypes.cast(called, c_void_p))
    base = ApiBase(
        CFUNCTYPE(c_void_p, c_uint32)(lambda version: ctypes.addressof(old) if version == 1 else None),
        CFUNCTYPE(c_void_p)(lambda: ctypes.addressof(old_version)),
    )
    library.RegisterCustomOps.restype = c_void_p
    assert library.RegisterCustomOps(None, byref(base)) == 4711
    assert b"this ONNX Runtime, 1.16.3, lacks version 17 of its C API" in said[0]


def byref_pointer(value: Any) -> c_void_p:
    return c_void_p(ctypes.addressof(value))
