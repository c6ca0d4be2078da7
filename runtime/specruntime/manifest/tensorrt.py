"""The manifest's description of a TensorRT engine file: what may load it, and how its windows map to profiles."""

from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from specruntime.manifest.engine import EngineSection
from specruntime.manifest.numbers import Index, Version
from specruntime.manifest.refusals import refuse

if TYPE_CHECKING:
    from specruntime.engines import EngineOptions
    from specruntime.engines.protocol import Engine
    from specruntime.manifest.graph import GraphSpec


class TensorRTEngine(EngineSection):
    """An engine file of `tensorrt` or `tensorrt_rtx`.

    `version` built it; another version loads it only with `version_compatible`. `compute_capabilities` ("8.9") are the
    devices it runs on; empty means every device the library supports. `optimization_profiles` gives the engine's
    profile index for each of the graph's profiles by name.
    """

    kind: Literal["tensorrt", "tensorrt_rtx"]
    version: Version
    version_compatible: bool = False
    compute_capabilities: tuple[Annotated[str, Field(pattern=r"^\d+\.\d$")], ...] = ()
    hardware_compatibility: Literal["none", "ampere_plus", "same_compute_capability"] = "none"
    optimization_profiles: dict[str, Index]
    stripped_weights_from: str | None = None  # ONNX file with the weights, next to the engine
    weight_streaming: bool = False

    def open(self, graph: "GraphSpec", root: Path, options: "EngineOptions") -> "Engine":
        from specruntime.engines.tensorrt import TrtEngine

        return TrtEngine(graph, root, options)

    def check(self, label: str, graph: "GraphSpec") -> None:
        named = {profile.name for profile in graph.profiles}
        if odd := sorted(named ^ self.optimization_profiles.keys()):
            refuse(f"{label}: {odd[0]!r} is in only one of profiles and engine.optimization_profiles")

    def files(self, graph: "GraphSpec") -> Iterable[str]:
        if self.stripped_weights_from is not None:
            yield (PurePosixPath(graph.file).parent / self.stripped_weights_from).as_posix()
