"""Locates the shared library with the operators for ONNX Runtime, and reports what it can do on this processor."""

import ctypes
import sys
from functools import cache
from pathlib import Path

__all__ = ["LAYOUT", "OPERATORS", "library_path", "path_name", "paths", "version"]

OPERATORS = 1
"""Version of the operators' attributes, inputs and arithmetic."""
LAYOUT = 1
"""Version of the packed weights."""

_SUFFIX = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")
_REASON_BYTES = 512


def library_path() -> Path:
    """Return the path of the shared library; raise `FileNotFoundError` where the package has none."""
    path = Path(__file__).with_name(f"libspecruntime_kernels{_SUFFIX}")
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: install specruntime-kernels again")
    return path


def version() -> str:
    """Return the version of the shared library; raise `OSError` where it does not load on this host."""
    return str(_library().specruntime_kernels_version().decode())


def path_name(name: str = "") -> str:
    """Return the instruction-set path that runs where `name` is asked for; "" stands for the best one.

    Raise `ValueError` with the reason where this processor or this build lacks it, `OSError` where the library does not
    load on this host.
    """
    reason = ctypes.create_string_buffer(_REASON_BYTES)
    found = _library().specruntime_kernels_select(name.encode(), reason, _REASON_BYTES)
    if found is None:
        raise ValueError(reason.value.decode())
    return str(found.decode())


def paths() -> dict[str, str | None]:
    """Return why this processor lacks each path, None for those it has; preferred ones first."""
    found: dict[str, str | None] = {}
    while (name := _library().specruntime_kernels_path(len(found))) is not None:
        path = name.decode()
        try:
            path_name(path)
            found[path] = None
        except ValueError as error:
            found[path] = str(error)
    return found


@cache
def _library() -> ctypes.CDLL:
    """Load the shared library, check that it belongs to this package; raise `OSError` where it does not."""
    path = library_path()
    library = ctypes.CDLL(str(path))
    try:
        found = library.specruntime_kernels_operators(), library.specruntime_kernels_layout()
        library.specruntime_kernels_version.restype = ctypes.c_char_p
        library.specruntime_kernels_path.restype = ctypes.c_char_p
        library.specruntime_kernels_path.argtypes = [ctypes.c_size_t]
        library.specruntime_kernels_select.restype = ctypes.c_char_p
        library.specruntime_kernels_select.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t]
    except AttributeError as error:
        raise OSError(f"{path} is not the library of specruntime-kernels: {error}") from error
    if found != (OPERATORS, LAYOUT):
        raise OSError(
            f"{path} has operators {found[0]} and layout {found[1]}, its package expects {OPERATORS} and {LAYOUT}: "
            "install specruntime-kernels again"
        )
    return library
