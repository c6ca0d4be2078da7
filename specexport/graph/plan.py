"""Which variant of a canonical graph a build wants: one value that travels from the recipe to the passes.

Knows neither backends nor files.
"""

import hashlib
from dataclasses import asdict, dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

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
        """Return what decides the graph, for a cache key and the build record."""
        return asdict(self)


@dataclass(frozen=True)
class WindowPlan:
    """A graph over the operators of `specruntime_kernels`, of version `operators`, over packed weights of `layout`.

    `cache`: how a row of keys or values is stored; int8 has a scale a row and head.
    """

    cache: Literal["fp32", "int8"] = "fp32"
    operators: int = 1
    layout: int = 1


@dataclass(frozen=True)
class FeatureSpec:
    """What a draft reads of the target, as the one output `features` [B, W, F] float32.

    `taps`: canonical outputs, concatenated in this order along the last axis: "hidden.N" enters layer N,
    "hidden.norm" is what the LM head reads. `projection` [F, len(taps) * hidden] is multiplied onto them in the
    precision of the graph; None leaves them as they are.
    """

    taps: tuple[str, ...]
    projection: NDArray[np.float32] | None = field(default=None, compare=False, repr=False)
    projection_sha256: str = field(init=False, default="")

    def __post_init__(self) -> None:
        assert self.taps, "features of nothing"
        if self.projection is not None:
            content = np.ascontiguousarray(self.projection, np.float32)
            digest = hashlib.sha256(repr(content.shape).encode() + content.tobytes()).hexdigest()
            object.__setattr__(self, "projection_sha256", digest)

    def describe(self) -> dict[str, object]:
        """Return what decides the output, for a cache key and the build record."""
        return {"taps": list(self.taps), "projection": self.projection_sha256 or None}


@dataclass(frozen=True)
class GraphPlan:
    """How a graph differs from the plain one: logits and caches over chain windows.

    `fused_steps`: greedy steps of a fused draft. `trees`: windows may be trees. `features`: what a draft reads.
    `draft_layers`: a second path of these layers in the same graph, with outputs of its own (`draft_logits`,
    `draft_top_ids`, `draft_present_*`). `kept_layers`: these layers are the whole graph, renumbered from 0. `weights`:
    how linear layers are stored; None leaves them in the precision of the graph. `window`: by which operators of
    `specruntime_kernels`; None: by none of them.
    """

    fused_steps: int = 0
    trees: bool = False
    features: FeatureSpec | None = None
    draft_layers: tuple[int, ...] = ()
    kept_layers: tuple[int, ...] = ()
    weights: WeightPlan | None = None
    window: WindowPlan | None = None

    def __post_init__(self) -> None:
        for layers in (self.draft_layers, self.kept_layers):
            assert list(layers) == sorted(set(layers)), f"layers ascend and none comes twice: {layers}"
        assert not (self.draft_layers and self.kept_layers), "a graph of kept layers has no second path"
        assert not (self.fused_steps and (self.trees or self.draft_layers)), "a fused draft is a chain"

    def describe(self) -> dict[str, object]:
        """Return what the passes depend on, for the cache key."""
        return {
            "fused_steps": self.fused_steps,
            "trees": self.trees,
            "features": self.features.describe() if self.features is not None else None,
            "draft_layers": list(self.draft_layers),
            "kept_layers": list(self.kept_layers),
            "weights": self.weights.describe() if self.weights is not None else None,
            **({"window": asdict(self.window)} if self.window is not None else {}),
        }


PLAIN = GraphPlan()


@dataclass(frozen=True)
class DraftPlan:
    """What a kind of draft asks of the graphs.

    `target`: of the target's. `draft`: of its own, made `of` the canonical graph with that name; None: it has none.
    """

    target: GraphPlan = PLAIN
    draft: GraphPlan | None = None
    of: Literal["target", "draft"] = "draft"
