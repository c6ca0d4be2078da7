"""Opening a compiled graph with the backend its manifest entry names."""

from dataclasses import dataclass
from pathlib import Path

from specruntime.engines.protocol import Engine
from specruntime.errors import InvalidArgument
from specruntime.manifest.graph import GraphSpec
from specruntime.manifest.numbers import MAX_THREADS


@dataclass(frozen=True)
class EngineOptions:
    """What a host may choose when it opens a bundle; None keeps what the manifest says.

    `threads` is the number of CPU threads per engine, `provider` ONNX Runtime's execution provider ("cpu", "cuda" or
    "tensorrt"), `profile_to` a file prefix that ONNX Runtime writes its operator profile to. Raises `InvalidArgument`
    for threads outside 1 to 1024. Threads that keep `spinning` for the next run steal cores from the other engine:
    off where target and draft run in turns. `copy_weights` lets ONNX Runtime read weights into memory of
    its own instead of mapping their files: more memory, and files that are written over change nothing. `kernels` is
    "off", "auto" or the instruction-set path on which the operators of `specruntime-kernels` run; None: what the
    environment variable SPECRUNTIME_KERNELS says, else "auto".
    """

    threads: int | None = None
    provider: str | None = None
    profile_to: Path | None = None
    spinning: bool = True
    copy_weights: bool = False
    kernels: str | None = None

    def __post_init__(self) -> None:
        if self.threads is not None and not 1 <= self.threads <= MAX_THREADS:
            raise InvalidArgument(f"threads: found {self.threads}, expected 1 to {MAX_THREADS}")


def open_engine(spec: GraphSpec, root: Path, options: EngineOptions) -> Engine:
    """Load the weights and code of `spec`, whose files lie under the bundle directory `root`.

    Raises `BackendMissing` when the backend's library is not installed, `BackendIncompatible` when it cannot load
    this graph here.
    """
    return spec.engine.open(spec, root, options)
