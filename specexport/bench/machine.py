"""The machine a figure was measured on: without it a figure says little."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from specruntime.engines.cores import usable_cores
from specruntime.manifest.schema import GraphSpec, stated_threads

_LIBRARIES = ("specexport", "specruntime", "onnxruntime", "torch", "transformers", "numpy")


def describe_machine(threads: int) -> dict[str, Any]:
    """JSON-ready. `threads` is what every mode may use; memory in megabytes of 10^6 bytes."""
    return {
        "processor": _processor(),
        "cores": usable_cores(),
        "threads": threads,
        "memory_mb": _memory_mb(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: found for name in _LIBRARIES if (found := _version(name)) is not None},
    }


def threads_of(graph: GraphSpec, chosen: int | None) -> int:
    """Threads of its engine: what was chosen, else what the bundle says, else the usable cores."""
    return chosen or stated_threads(graph) or usable_cores()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _memory_mb() -> float | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e6
    except (ValueError, OSError, AttributeError):
        return None


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
