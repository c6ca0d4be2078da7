"""The part of a recipe that says what drafts: one class per kind. A new kind joins the union `Draft`.

Here the kinds that propose a chain; `recipe_feature_drafts` has those that read the target's features.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from specexport.recipe_feature_drafts import EagleDraft, MedusaDraft
from specexport.recipe_lengths import Drafted, Lengths, LookupWindow, ascending_widths
from specexport.recipe_sources import Closed, DraftSource, ModelSource
from specexport.recipe_weights import OwnGraph
from specruntime.schema_numbers import MAX_LAYERS, Share

_NARROW_WIDTH = 4


class NoneDraft(Closed):
    """Plain decoding."""

    kind: Literal["none"]

    @property
    def default_widths(self) -> tuple[int, ...]:
        """Widths of the windows that drafts are judged in."""
        return ()


class NgramDraft(LookupWindow):
    """Copies the tokens that followed the last n tokens where they occurred before."""

    kind: Literal["ngram"]
    adaptive: bool = False
    """The number of drafted tokens follows recent acceptance and the measured step times; 0 where drafts do not pay."""

    @property
    def nodes(self) -> int:
        """Most drafted tokens of a window."""
        return self.k

    @property
    def default_widths(self) -> tuple[int, ...]:
        """A find is often short, so a narrow window stands beside the full one."""
        full = self.k + 1
        return (_NARROW_WIDTH, full) if full > _NARROW_WIDTH + 2 else (full,)


class ModelDraft(ModelSource, OwnGraph, Lengths):
    """A smaller checkpoint with the target's tokenizer."""

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

    @property
    def nodes(self) -> int:
        """Most drafted tokens of a window."""
        return self.k

    @property
    def default_widths(self) -> tuple[int, ...]:
        """A draft model fills its window nearly always, unless its length follows acceptance."""
        return ascending_widths(self.k, self)

    @model_validator(mode="after")
    def _check_fused(self) -> Self:
        if self.fused and self.stop_below is not None:
            raise ValueError(
                f"stop_below: found {self.stop_below} with fused: true, whose steps are one launch; "
                "leave out one of them"
            )
        return self


class LayerSkipDraft(Lengths):
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

    @property
    def kept_layers(self) -> tuple[int, ...]:
        """The layers that draft, ascending."""
        return self.layers if self.layers is not None else tuple(range(self.exit_after or 0))

    @property
    def nodes(self) -> int:
        """Most drafted tokens of a window."""
        return self.k

    @property
    def default_widths(self) -> tuple[int, ...]:
        """As a draft model."""
        return ascending_widths(self.k, self)

    @model_validator(mode="after")
    def _check_layers(self) -> Self:
        if (self.exit_after is None) is (self.layers is None):
            found = "neither exit_after nor layers" if self.layers is None else "both exit_after and layers"
            raise ValueError(f"exit_after: found {found}, expected one of them")
        if self.layers is not None and list(self.layers) != sorted(set(self.layers)):
            raise ValueError(f"layers: found {list(self.layers)}, expected ascending layers, each once")
        return self


Draft = Annotated[
    NoneDraft | NgramDraft | ModelDraft | LayerSkipDraft | MedusaDraft | EagleDraft,
    Field(discriminator="kind"),
]
