"""Locates the shared library with the operators for ONNX Runtime, and reports what it can do on this processor."""

import ctypes
import sys
from functools import cache
from pathlib import Path

__all__ = ["LAYOUT", "OPERATORS", "library_path", "version"]

OPERATORS = 1
"""Version of the operators' attributes, inputs and arithmetic."""
LAYOUT = 1
"""Version of the packed weights."""

_SUFFIX = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")


def library_path() -> Path:
    """Return the path of the shared library; raise `FileNotFoundError` where the package has none."""
    path = Path(__file__).with_name(f"libspecruntime_kernels{_SUFFIX}")
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: install specruntime-kernels again")
    return path


def version() -> str:
    """Return the version of the shared library."""
    return str(_library().specruntime_kernels_version().decode())


@cache
def _library() -> ctypes.CDLL:
    """Load the shared library; raise `OSError` where it does not load on this host."""
    library = ctypes.CDLL(str(library_path()))
    library.specruntime_kernels_version.restype = ctypes.c_char_p
    return library
