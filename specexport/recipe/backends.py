"""The part of a recipe that says what runs the graphs: one class per kind of backend.

`build_side` names the class that builds for it, which is imported when a build needs it.
"""

from collections.abc import Collection, Iterator
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from specexport.recipe.sources import RecipePart
from specexport.recipe.weights import EngineWeights
from specexport.tensorrt.options import TensorRTBackend
from specruntime.manifest.numbers import MAX_PROFILES, Size, Threads

Precision = Literal["fp32", "fp16", "bf16"]


class OnnxRuntimeBackend(RecipePart):
    """ONNX Runtime with one of its execution providers."""

    build_side: ClassVar[str] = "specexport.backends.onnxruntime:OnnxRuntimeBuild"

    kind: Literal["onnxruntime"]
    provider: Literal["cpu", "cuda", "tensorrt"] = "cpu"
    threads: Annotated[Threads | None, Field(examples=[2])] = None
    """Threads of one engine call; the number of cores where it is not given."""
    prepacked: bool = False
    """Saves the weights in the CPU kernels' layout in addition to the plain ones: processes on a host share them, and
    bundles open faster on a processor and library like those of the build; the weights file doubles."""

    kernels: bool = True
    """Writes the graph over the operators of specruntime-kernels as well: a window of several tokens costs little more
    than one there, and its rows have the bits of plain decoding. For provider cpu and precision fp32; hosts without
    that library run the plain graph."""

    @model_validator(mode="after")
    def _check_kernels(self) -> Self:
        if self.kernels and self.provider != "cpu" and "kernels" in self.model_fields_set:
            raise ValueError(
                f"kernels: found true with provider {self.provider}, expected provider cpu: the operators are for it"
            )
        return self

    @model_validator(mode="after")
    def _check_prepacked(self) -> Self:
        if self.prepacked and self.provider != "cpu":
            raise ValueError(
                f"prepacked: found true with provider {self.provider}, expected provider cpu: only its kernels pack "
                "weights"
            )
        return self

    @property
    def precisions(self) -> tuple[Precision, ...]:
        """What the provider has kernels for."""
        return ("fp32", "fp16") if self.provider == "cpu" else ("fp32", "fp16", "bf16")

    @property
    def takes_integers(self) -> bool:
        """Whether its kernels take int8 and int4 weights."""
        return self.provider == "cpu"

    @property
    def runs_kernels(self) -> bool:
        """Whether a graph over the operators of specruntime-kernels is written."""
        return self.kernels and self.provider == "cpu"

    @property
    def copies_weights(self) -> bool:
        """Whether a bundle holds the weights a second time."""
        return self.prepacked

    @property
    def compiles(self) -> bool:
        """Whether a build compiles engines for a device."""
        return False

    def weight_conflicts(
        self, weights: EngineWeights | None, precision: str, said: str, stored: Collection[str]
    ) -> Iterator[str]:
        """One line where there are `weights` of an engine."""
        if weights is not None:
            yield (
                f"weights: found {weights.format} with this backend, expected backend.kind tensorrt or tensorrt_rtx; "
                "onnxruntime on the CPU takes int8 and int4"
            )

    @property
    def precision_advice(self) -> str:
        """What to do about a precision that is not among them."""
        return "ONNX Runtime has few bf16 kernels on the CPU; bf16 needs backend.provider: cuda or tensorrt"


Backend = Annotated[OnnxRuntimeBackend | TensorRTBackend, Field(discriminator="kind")]


def _sizes(value: Any) -> Any:
    """Expand a number to the powers of two below it and itself."""
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 2**MAX_PROFILES:
        powers = (2**power for power in range(MAX_PROFILES))
        return (*(size for size in powers if size < value), value)
    if isinstance(value, (list, tuple)):
        return tuple(value)
    raise ValueError(
        f"batch: found {value!r}, expected a number of sequences from 1 on, or ascending ones in a list"
    )


BatchSizes = Annotated[
    tuple[Size, ...],
    Field(min_length=1, max_length=MAX_PROFILES),
    BeforeValidator(_sizes, json_schema_input_type=Size | list[Size]),
]
