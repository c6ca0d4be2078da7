"""What each TensorRT library really offers, as data.

Owns the reasons given when a recipe asks for more. Statements about `tensorrt_rtx` were tried with 1.7.1 on a machine
without a GPU; statements about `tensorrt` follow its bindings (11.4) and documentation and have not been run.
"""

from collections.abc import Collection
from dataclasses import dataclass, fields

from specruntime.engines.tensorrt_library import LibraryName


@dataclass(frozen=True)
class Feature:
    """`reason`: why it is not offered, or what to know where it is."""

    offered: bool
    reason: str = ""


@dataclass(frozen=True)
class Capabilities:
    """One row of the table. Fields of type `Feature` carry the name of the recipe key they allow."""

    library: LibraryName
    builds_without_gpu: bool
    compute_capability_names: tuple[
        str, ...
    ]  # engines can be aimed at these; empty: only at the device present
    compute_capabilities: Feature
    optimization_level: Feature
    timing_cache: Feature
    version_compatible: Feature
    hardware_compatibility: Feature
    refit: Feature
    strip_weights: Feature
    weight_streaming: Feature
    runtime_cache: Feature
    kv_cache_update: Feature

    def features(self) -> dict[str, Feature]:
        """Return the features by recipe key."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Feature)}


FORMATS_SINCE: dict[str, tuple[int, int]] = {
    "bf16": (8, 0),
    "int4-awq": (8, 0),
    "fp8": (8, 9),
    "nvfp4": (10, 0),
}
"""The least compute capability with arithmetic for a format; tensorrt_rtx 1.7.1 was tried for each and refuses the
others."""


_NO_REFIT = (
    "the RTX builder compiles refittable kernels on the device and fails without a GPU "
    "(CUDA_SUCCESS check in graph_jit)"
)

CAPABILITIES: dict[LibraryName, Capabilities] = {
    "tensorrt": Capabilities(
        library="tensorrt",
        builds_without_gpu=False,
        compute_capability_names=(),
        compute_capabilities=Feature(
            False, "engines are built for the GPU of the build host; use hardware_compatibility"
        ),
        optimization_level=Feature(True),
        timing_cache=Feature(True),
        version_compatible=Feature(True, "the engine carries a lean runtime and loads in later versions"),
        hardware_compatibility=Feature(True),
        refit=Feature(True),
        strip_weights=Feature(
            True, "the engine holds no weights; the runtime refits them from the bundle's ONNX files"
        ),
        weight_streaming=Feature(True),
        runtime_cache=Feature(False, "engines hold finished kernels; nothing is compiled on the run host"),
        kv_cache_update=Feature(True, "since 10.15"),
    ),
    "tensorrt_rtx": Capabilities(
        library="tensorrt_rtx",
        builds_without_gpu=True,
        compute_capability_names=("SM75", "SM80", "SM86", "SM89", "SM120", "SM121"),
        compute_capabilities=Feature(True, "all of them where the recipe names none"),
        optimization_level=Feature(
            False, "the RTX builder takes no notice: engines of level 0 and 5 have the same size"
        ),
        timing_cache=Feature(False, "timing-cache calls are no-ops in TensorRT-RTX"),
        version_compatible=Feature(
            False, "the build needs libnvinfer_lean, which TensorRT-RTX does not ship"
        ),
        hardware_compatibility=Feature(
            False, "TensorRT-RTX refuses the level; name compute_capabilities instead"
        ),
        refit=Feature(False, _NO_REFIT),
        strip_weights=Feature(False, _NO_REFIT),
        weight_streaming=Feature(
            False, "the RTX builder accepts the flag and writes an engine of the same size"
        ),
        runtime_cache=Feature(True, "kernels are compiled on the run host and kept next to the bundle"),
        kv_cache_update=Feature(True),
    ),
}


def least_capability(formats: Collection[str]) -> tuple[int, int]:
    """Return the least compute capability that has arithmetic for all of `formats`."""
    return max((FORMATS_SINCE.get(name, (0, 0)) for name in formats), default=(0, 0))


def capable_names(library: LibraryName, formats: Collection[str]) -> tuple[str, ...]:
    """Return the compute capabilities that engines of `library` can target and that have arithmetic for `formats`."""
    least = least_capability(formats)
    names = CAPABILITIES[library].compute_capability_names
    return tuple(name for name in names if (int(name[2:-1]), int(name[-1])) >= least)
