"""Kind `model`: a smaller language model drafts, step by step or all steps in one launch."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import Field, PositiveInt, model_validator

from specexport.draft_kinds.kind import Lengths, OwnGraph
from specexport.graph.plan import DraftPlan, GraphPlan
from specexport.recipe.sources import DraftSource, ModelSource
from specexport.recipe.trees import Drafted, ascending_widths
from specruntime import drafts as manifest
from specruntime.drafts import DraftSpec
from specruntime.manifest.graph import GraphSpec, Profile
from specruntime.manifest.numbers import Share

if TYPE_CHECKING:
    from specexport.graph.canonical import CanonicalGraph


class ModelRecipe(ModelSource, OwnGraph, Lengths):
    """A smaller checkpoint with the target's tokenizer."""

    vllm_methods: ClassVar = {"draft_model": "model"}

    kind: Literal["model"]
    source: Annotated[DraftSource, Field(examples=["./my-draft"])]
    k: Drafted = 4
    """Tokens drafted per round."""
    capacity: Annotated[PositiveInt | None, Field(examples=[1024])] = None
    """KV rows of the draft's cache; the target's capacity where it is not given."""
    fused: bool = False
    """All k steps in one graph and one launch, always greedy; pays where a launch costs more than a step."""
    stop_below: Annotated[Share | None, Field(examples=[0.3])] = None
    """Draft no further once the draft's own probability of its token falls below this."""

    @model_validator(mode="after")
    def _check_fused(self) -> Self:
        if self.fused and self.stop_below is not None:
            raise ValueError(
                f"stop_below: found {self.stop_below} with fused: true, whose steps are one launch; "
                "leave out one of them"
            )
        return self

    @property
    def nodes(self) -> int:
        return self.k

    @property
    def default_widths(self) -> tuple[int, ...]:
        """A draft model fills its window nearly always, unless its length follows acceptance."""
        return ascending_widths(self.k, self.lookup, adaptive=self.adaptive)

    @property
    def own_capacity(self) -> int | None:
        return self.capacity

    @property
    def source_name(self) -> str:
        return str(self.source)

    @property
    def checkpoint(self) -> ModelSource:
        return self

    def digest(self, target_digest: str) -> str:
        from specexport.checkpoints.named import source_digest

        return source_digest(self, target_digest)

    def plan(self, canonical: "Mapping[str, CanonicalGraph]", *, runs_parts: bool) -> DraftPlan:
        return DraftPlan(draft=GraphPlan(fused_steps=self.k if self.fused else 0))

    def windows(self, prefill_chunk: int, outputs: Sequence[str]) -> tuple[Profile, ...]:
        from specexport.graph.files import draft_profiles, fused_draft_profiles

        return (fused_draft_profiles if self.fused else draft_profiles)(prefill_chunk)

    def spec(self, graph: GraphSpec | None, canonical: "CanonicalGraph | None") -> DraftSpec:
        assert graph is not None, "this kind has a graph of its own"
        return manifest.ModelDraft(k=self.k, fused=self.fused, stop_below=self.stop_below, graph=graph)
