"""The recipe's `backend:` section for `tensorrt` and `tensorrt_rtx`, checked against the capability table.

Owns the keys and their rules. Knows nothing of graphs; needs neither library installed.
"""

from collections.abc import Collection, Iterator
from typing import Annotated, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, model_validator

from specexport.recipe.weights import EngineWeights
from specexport.tensorrt.capability import CAPABILITIES, capable_names

Precision = Literal["fp32", "fp16", "bf16"]
HardwareCompatibility = Literal["none", "ampere_plus", "same_compute_capability"]


class TensorRTBackend(BaseModel):
    """`backend: {kind: tensorrt_rtx, ...}`. Every key but `kind` has a default that both libraries take."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    build_side: ClassVar[str] = "specexport.backends.tensorrt:TensorRTBuild"

    kind: Literal["tensorrt", "tensorrt_rtx"]
    profiles: Literal["shared", "per_width"] = Field(
        "shared",
        description="shared: one optimization profile from width 1 to the prefill chunk, one copy of the weights; "
        "per_width: static profiles for the step and verify widths, which brings a second copy of the weights",
    )
    workspace_mib: PositiveInt | None = Field(None, examples=[1024])
    optimization_level: Annotated[int, Field(ge=0, le=5)] | None = Field(None, examples=[3])
    compute_capabilities: tuple[str, ...] = ()
    timing_cache: bool = False
    version_compatible: bool = False
    hardware_compatibility: HardwareCompatibility = "none"
    refit: bool = False
    strip_weights: bool = False
    weight_streaming: bool = False
    decomposable_attention: bool = False
    layer_report: bool = False

    @model_validator(mode="after")
    def _check_offered(self) -> Self:
        capabilities = CAPABILITIES[self.kind]
        for key, feature in capabilities.features().items():
            if key in type(self).model_fields and not feature.offered and self._asks_for(key):
                raise ValueError(
                    f"{key}: found {getattr(self, key)!r}, not offered by {self.kind}: {feature.reason}"
                )
        return self

    @model_validator(mode="after")
    def _check_compute_capabilities(self) -> Self:
        known = CAPABILITIES[self.kind].compute_capability_names
        unknown = [name for name in self.compute_capabilities if name not in known]
        if unknown and known:
            raise ValueError(
                f"compute_capabilities: found {', '.join(unknown)}, expected some of {', '.join(known)}"
            )
        return self

    @property
    def precisions(self) -> tuple[Precision, ...]:
        """What has a fused attention kernel; fp32 has none and builds only where attention may be decomposed."""
        return ("fp16", "bf16", "fp32") if self.decomposable_attention else ("fp16", "bf16")

    @property
    def runs_kernels(self) -> bool:
        """Whether a graph over the operators of specruntime-kernels is written."""
        return False

    @property
    def takes_integers(self) -> bool:
        """Not int8 or int4 as ONNX Runtime's kernels take them."""
        return False

    @property
    def copies_weights(self) -> bool:
        """An engine holds its weights once."""
        return False

    @property
    def compiles(self) -> bool:
        """A build compiles engines for a device."""
        return True

    def weight_conflicts(
        self, weights: EngineWeights | None, precision: str, said: str, stored: Collection[str]
    ) -> Iterator[str]:
        """One line for each rule between this section and `weights` that is not kept.

        `said`: how messages show the precision; `stored`: every format that a device must have arithmetic for.
        """
        if weights is not None and precision == "fp32":
            yield f"precision: {said} with weights {weights.format}, expected fp16 or bf16"
            return
        if weights is not None and (self.refit or self.strip_weights):
            key = "refit" if self.refit else "strip_weights"
            yield (
                f"backend.{key}: found true with weights {weights.format}; engines over them were never refitted, "
                "leave one of both out"
            )
        capable = capable_names(self.kind, stored)
        beyond = [name for name in self.compute_capabilities if name not in capable]
        if beyond:
            yield (
                f"backend.compute_capabilities: found {', '.join(beyond)} with {' and '.join(stored)}, "
                f"expected some of {', '.join(capable)}"
            )

    @property
    def precision_advice(self) -> str:
        """What to do about a precision that is not among them."""
        return (
            "fp32 attention has no fused kernel; backend.decomposable_attention: true builds it without one"
        )

    def aimed_at(self, formats: Collection[str]) -> Self:
        """Return the same; where the recipe names no compute capability and some have no arithmetic for `formats`,
        aimed at those that have."""
        capable = capable_names(self.kind, formats)
        if self.compute_capabilities or capable == CAPABILITIES[self.kind].compute_capability_names:
            return self
        return self.model_copy(update={"compute_capabilities": capable})

    def _asks_for(self, key: str) -> bool:
        return bool(getattr(self, key) != type(self).model_fields[key].default)
