"""Kind `layer_skip`: the target drafts with some of its layers, on the same weights and cache.

An engine that runs parts of a graph has them as a second path of the target's graph; elsewhere they are a graph of
their own.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, NonNegativeInt, model_validator

from specexport.draft_kinds.kind import Lengths
from specexport.graph.plan import DraftPlan, GraphPlan
from specexport.recipe.trees import Drafted, ascending_widths
from specruntime import drafts as manifest
from specruntime.drafts import DraftSpec
from specruntime.manifest.graph import SELF_PROFILE, GraphSpec, Profile
from specruntime.manifest.numbers import MAX_LAYERS

if TYPE_CHECKING:
    from specexport.graph.canonical import CanonicalGraph


class LayerSkipRecipe(Lengths):
    """The target itself with some of its layers, sharing its weights and its KV cache."""

    kind: Literal["layer_skip"]
    k: Drafted = 3
    """Tokens drafted per round."""
    exit_after: Annotated[int, Field(ge=1, le=MAX_LAYERS)] | None = Field(None, examples=[8])
    """How many of the first layers draft: an early exit."""
    layers: Annotated[tuple[NonNegativeInt, ...], Field(min_length=1, max_length=MAX_LAYERS)] | None = Field(
        None, examples=[[0, 1, 5]]
    )
    """The layers that draft, ascending; in place of exit_after."""

    @model_validator(mode="after")
    def _check_layers(self) -> Self:
        if (self.exit_after is None) is (self.layers is None):
            found = "neither exit_after nor layers" if self.layers is None else "both exit_after and layers"
            raise ValueError(f"exit_after: found {found}, expected one of them")
        if self.layers is not None and list(self.layers) != sorted(set(self.layers)):
            raise ValueError(f"layers: found {list(self.layers)}, expected ascending layers, each once")
        return self

    @property
    def kept_layers(self) -> tuple[int, ...]:
        """The layers that draft, ascending."""
        return self.layers if self.layers is not None else tuple(range(self.exit_after or 0))

    @property
    def nodes(self) -> int:
        return self.k

    @property
    def default_widths(self) -> tuple[int, ...]:
        """As a draft model."""
        return ascending_widths(self.k, self.lookup, adaptive=self.adaptive)

    def check(self, target: str, layers: int | None) -> None:
        from specexport.errors import CheckpointUnsupported

        kept = self.kept_layers
        if layers is None or (kept[-1] < layers and len(kept) < layers):
            return
        if self.layers is None:
            raise CheckpointUnsupported(
                f"found {len(kept)}, expected at most {layers - 1}: {target} has {layers} layers, and a draft that "
                "keeps all of them saves nothing",
                key="draft.exit_after",
            )
        raise CheckpointUnsupported(
            f"found {len(kept)} layers up to {kept[-1]}, expected fewer than all of 0 to {layers - 1}, the layers of "
            f"{target}",
            key="draft.layers",
        )

    def plan(self, canonical: "Mapping[str, CanonicalGraph]", *, runs_parts: bool) -> DraftPlan:
        self.check(canonical["target"].name, canonical["target"].facts.layers)
        if runs_parts:
            return DraftPlan(target=GraphPlan(draft_layers=self.kept_layers))
        return DraftPlan(draft=GraphPlan(kept_layers=self.kept_layers), of="target")

    def windows(self, prefill_chunk: int, outputs: Sequence[str]) -> tuple[Profile, ...]:
        from specexport.graph.files import draft_profiles

        return draft_profiles(prefill_chunk)

    def spec(self, graph: GraphSpec | None, canonical: "CanonicalGraph | None") -> DraftSpec:
        return manifest.LayerSkipDraft(k=self.k, layers=self.kept_layers, graph=graph)

    def step_times(self, times: Mapping[str, Mapping[str, float]]) -> Mapping[str, float]:
        if "draft" in times:
            return times["draft"]
        return {name: ms for name, ms in times["target"].items() if name == SELF_PROFILE}
