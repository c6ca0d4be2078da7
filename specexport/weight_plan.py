"""How the weights of a graph are stored and multiplied: one value that travels from the recipe to the passes.

Knows neither operators nor files.
"""

from dataclasses import asdict, dataclass
from typing import Literal

WeightFormat = Literal["int8", "int4", "fp32"]
Activations = Literal["blocks", "rows", "fine"]


@dataclass(frozen=True)
class LinearPlan:
    """One kind of linear layer.

    `format`: of its weights; fp32 leaves it as it is. `activations`: how the numbers that meet them are rounded, always
    by scales of their own row, so that no row depends on another: "blocks" to 8 bits with a scale per block of the
    row, "rows" to 8 bits with one scale per row (int8 weights with a scale per output channel), "fine" as "blocks" with
    what that leaves out in a second 8-bit plane, about 15 bits at nearly twice the arithmetic.
    """

    format: WeightFormat
    activations: Activations = "blocks"

    def __post_init__(self) -> None:
        assert self.activations != "rows" or self.format == "int8", (
            "one scale per row meets int8 weights only"
        )


@dataclass(frozen=True)
class WeightPlan:
    """`linear`: every linear layer but the LM head. `block`: neighbouring weights of one output that share a scale."""

    linear: LinearPlan
    lm_head: LinearPlan
    block: int = 32

    def describe(self) -> dict[str, object]:
        """What decides the graph, for a cache key and the build record."""
        return asdict(self)
