"""Measurements in a process of their own, which holds and has loaded nothing but what a production host would."""

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from specruntime.errors import EngineFailed
from specruntime.inspection.summary import cache_bytes, graphs_of, weight_bytes
from specruntime.manifest.schema import Manifest


def run_probe(module: str, bundle: Path, threads: int | None) -> dict[str, Any]:
    """Return the JSON object that `python -m MODULE BUNDLE [THREADS]` prints. Raises `EngineFailed`."""
    command = [sys.executable, "-m", module, str(bundle), *([str(threads)] if threads is not None else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise EngineFailed(f"{module} ended with {done.returncode}: {reason}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


_MEMORY_PROBE = "specexport.bench.memory_probe"
_MB = 1e6


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Megabytes of 10^6 bytes. What is measured is None on systems that do not tell."""

    session_mb: (
        float | None
    )  # private and shared pages above a bare `import onnxruntime`, one session, token ids
    text_mb: float | None  # what a text prompt adds: the tokenizer and its vocabulary
    peak_rss_mb: float | None  # most that was resident, the interpreter and all libraries included
    weights_mb: float
    kv_mb: float

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


def measure_memory(bundle: Path, manifest: Manifest, threads: int | None = None) -> MemoryUse:
    """Open the bundle in a process of its own and answers one check prompt there. Raises `EngineFailed`."""
    graphs = graphs_of(manifest).values()
    weights = sum(weight_bytes(manifest, graph) for graph in graphs) / _MB
    cache = sum(cache_bytes(graph) for graph in graphs) / _MB
    if sys.platform != "linux":
        return MemoryUse(None, None, None, weights, cache)
    found = run_probe(_MEMORY_PROBE, bundle, threads)
    return MemoryUse(found["session"] / _MB, found["text"] / _MB, found["peak"] / _MB, weights, cache)


_START_PROBE = "specexport.bench.start_probe"
_REPEATS = 3


@dataclass(frozen=True, slots=True)
class StartTimes:
    """Milliseconds by step, medians of a few processes; the files are in the system's page cache by then."""

    import_ms: float  # Python's own, before the bundle is opened
    open_ms: float  # hashes checked, weights mapped and packed
    session_ms: float  # buffers, and the largest windows run once
    text_ms: float  # the tokenizer, and the prompt's ids
    first_ms: float  # the prompt to its first token

    @property
    def open_to_first_ms(self) -> float:
        return self.open_ms + self.session_ms + self.text_ms + self.first_ms

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "open_to_first_ms": self.open_to_first_ms,
            "start_ms": {
                "import": self.import_ms,
                "open": self.open_ms,
                "session": self.session_ms,
                "text": self.text_ms,
                "first": self.first_ms,
            },
        }


def measure_start(bundle: Path, threads: int | None = None) -> StartTimes:
    """Answer the first check prompt of the bundle. Raises `EngineFailed`."""
    found = [run_probe(_START_PROBE, bundle, threads) for _ in range(_REPEATS)]
    return StartTimes(**{f"{step}_ms": median(each[step] for each in found) for step in found[0]})
