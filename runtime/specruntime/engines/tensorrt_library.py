"""Finds the library behind `tensorrt` and `tensorrt_rtx`: one API under two names.

Owns module names, package names and the versions supported. Knows nothing of building or running an engine.
"""

import importlib
from dataclasses import dataclass
from typing import Any, Literal

from specruntime.errors import BackendIncompatible, BackendMissing

LibraryName = Literal["tensorrt", "tensorrt_rtx"]

PACKAGES: dict[LibraryName, str] = {"tensorrt": "tensorrt", "tensorrt_rtx": "tensorrt-rtx"}
MINIMUM_VERSIONS: dict[LibraryName, str] = {"tensorrt": "10.15", "tensorrt_rtx": "1.7"}


@dataclass(frozen=True)
class Library:
    """An imported library: `module` offers Builder, Runtime, OnnxParser, ..."""

    name: LibraryName
    module: Any
    version: str


def load_library(name: LibraryName) -> Library:
    """Import `name`. Raises `BackendMissing` without it, `BackendIncompatible` where it is older than supported."""
    package = PACKAGES[name]
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        raise BackendMissing(
            f"{name} cannot be imported ({error}); run `pip install {package} cuda-bindings`"
        ) from None
    version = str(module.__version__)
    if version_tuple(version) < version_tuple(MINIMUM_VERSIONS[name]):
        raise BackendIncompatible(
            f"{name} {version} is installed, expected at least {MINIMUM_VERSIONS[name]}; run `pip install -U {package}`"
        )
    return Library(name, module, version)


def version_tuple(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, as (1, 7, 1, 116) of "1.7.1.116"; a part that is not a number ends it."""
    numbers: list[int] = []
    for part in version.split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)
