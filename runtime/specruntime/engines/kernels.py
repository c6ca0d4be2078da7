"""Chooses whether a graph runs on the operators of `specruntime-kernels`, and on which instruction-set path.

`EngineOptions.kernels`, else the environment variable SPECRUNTIME_KERNELS, says "off", "auto" (the default) or the name
of a path. Where the operators cannot run, one line of log says why and the plain graph is opened; a path that was asked
for by name raises instead.
"""

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from specruntime.engines.onnx_buffers import first_line
from specruntime.errors import BackendIncompatible, BackendMissing, InvalidArgument, SpecError
from specruntime.manifest.onnxruntime import WindowGraph

LOG = logging.getLogger("specruntime.engines")

VARIABLE = "SPECRUNTIME_KERNELS"
OFF, AUTO = "off", "auto"
_CONFIG_KEY = "specruntime.kernels"  # read by the library when it registers its operators


@dataclass(frozen=True)
class Kernels:
    """The operators of `library` on one path."""

    library: Path
    version: str
    path: str

    def register(self, settings: Any) -> None:
        """Add the operators to ONNX Runtime's session options; raise `BackendIncompatible` where it refuses."""
        settings.add_session_config_entry(_CONFIG_KEY, self.path)
        try:
            settings.register_custom_ops_library(str(self.library))
        except Exception as error:
            raise BackendIncompatible(
                f"onnxruntime does not take the operators of specruntime-kernels {self.version}: {first_line(error)}"
            ) from error


def asked_kernels(option: str | None) -> str:
    """Return what the option, else the environment, asks for: "off", "auto" or the name of a path."""
    return option or os.environ.get(VARIABLE, "").strip() or AUTO


def is_forced(asked: str) -> bool:
    return asked not in (OFF, AUTO)


def find_kernels(window: WindowGraph, asked: str, provider: str = "cpu") -> Kernels:
    """Return what runs the window graph on this host.

    Raises `BackendMissing`, `BackendIncompatible` or `InvalidArgument` with the reason where nothing does.
    """
    if asked == OFF:
        raise InvalidArgument("they were turned off")
    if provider != "cpu":
        raise InvalidArgument(f"the provider is {provider}, they run on cpu alone")
    package = _package()
    for name, found, needed in (
        ("operators", package.OPERATORS, window.operators),
        ("layout", package.LAYOUT, window.layout),
    ):
        if found != needed:
            raise BackendIncompatible(
                f"specruntime-kernels has {name} {found}, the bundle was built for {needed}: install the version that "
                "belongs to it, or build the bundle again"
            )
    try:
        path = package.path_name("" if asked == AUTO else asked)
    except ValueError as error:
        if is_forced(asked) and asked not in (names := package.paths()):
            raise InvalidArgument(
                f"path {asked!r} is unknown, expected off, auto, {', '.join(names)}"
            ) from error
        raise BackendIncompatible(str(error)) from error
    return Kernels(package.library_path(), package.version(), path)


def _package() -> ModuleType:
    try:
        import specruntime_kernels

        specruntime_kernels.version()  # loads the library
    except ImportError as error:
        raise BackendMissing("specruntime-kernels is not installed") from error
    except OSError as error:
        raise BackendIncompatible(f"the library of specruntime-kernels does not load: {error}") from error
    return specruntime_kernels


def choose_kernels(window: WindowGraph | None, option: str | None, provider: str) -> Kernels | None:
    """Return what runs the window graph, or None where the plain graph is to be opened, after a line of log.

    Raises the reason instead for a path that was asked for by name.
    """
    if window is None:
        return None
    asked = asked_kernels(option)
    try:
        return find_kernels(window, asked, provider)
    except SpecError as error:
        decline(window, asked, error)
        return None


def decline(window: WindowGraph, asked: str, error: SpecError) -> None:
    """Say in one line of log why the plain graph is opened; raise where a path was asked for by name."""
    if is_forced(asked):
        raise type(error)(f"kernels {asked!r} cannot run {window.file}: {error}") from error
    level = logging.INFO if asked == OFF else logging.WARNING
    LOG.log(level, "%s is not used, the plain graph is opened: %s", window.file, error)
