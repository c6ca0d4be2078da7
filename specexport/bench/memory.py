"""Memory of a process that only decodes a bundle, beside what its weights and KV cache need."""

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from specexport.bench.processes import run_probe
from specruntime.manifest import Manifest
from specruntime.summary import cache_bytes, graphs_of, weight_bytes

_PROBE = "specexport.bench.memory_probe"
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
    """Opens the bundle in a process of its own and answers one check prompt there. Raises `EngineFailed`."""
    graphs = graphs_of(manifest).values()
    weights = sum(weight_bytes(manifest, graph) for graph in graphs) / _MB
    cache = sum(cache_bytes(graph) for graph in graphs) / _MB
    if sys.platform != "linux":
        return MemoryUse(None, None, None, weights, cache)
    found = run_probe(_PROBE, bundle, threads)
    return MemoryUse(found["session"] / _MB, found["text"] / _MB, found["peak"] / _MB, weights, cache)
