"""The manifest's description of a TensorRT engine file: what may load it, and how its windows map to profiles."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from specruntime.manifest.numbers import Index, Version


class TensorRTEngine(BaseModel):
    """An engine file of `tensorrt` or `tensorrt_rtx`.

    `version` built it; another version loads it only with `version_compatible`. `compute_capabilities` ("8.9") are the
    devices it runs on; empty means every device the library supports. `optimization_profiles` gives the engine's
    profile index for each of the graph's profiles by name.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["tensorrt", "tensorrt_rtx"]
    version: Version
    version_compatible: bool = False
    compute_capabilities: tuple[Annotated[str, Field(pattern=r"^\d+\.\d$")], ...] = ()
    hardware_compatibility: Literal["none", "ampere_plus", "same_compute_capability"] = "none"
    optimization_profiles: dict[str, Index]
    stripped_weights_from: str | None = None  # ONNX file with the weights, next to the engine
    weight_streaming: bool = False
