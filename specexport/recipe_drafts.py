"""The part of a recipe that says what drafts: one class per kind. A new kind joins the union `Draft`."""

from typing import Annotated, Literal, Self

from pydantic import Field, PositiveInt, model_validator

from specexport.recipe_sources import Closed, DraftSource, ModelSource

MAX_DRAFTED = 64
_NARROW_WIDTH = 4

Drafted = Annotated[int, Field(ge=1, le=MAX_DRAFTED)]


class NoneDraft(Closed):
    """Plain decoding."""

    kind: Literal["none"]

    @property
    def default_widths(self) -> tuple[int, ...]:
        """Widths of the windows that drafts are judged in."""
        return ()


class NgramDraft(Closed):
    """Copies the tokens that followed the last n tokens where they occurred before."""

    kind: Literal["ngram"]
    k: Drafted = 10
    """Most tokens drafted per round."""
    max_n: Annotated[int, Field(ge=1, le=16)] = 3
    """The longest n that is looked for, and the first."""
    min_n: Annotated[int, Field(ge=1, le=16)] = 1
    """The shortest n that is looked for."""

    @property
    def default_widths(self) -> tuple[int, ...]:
        """A find is often short, so a narrow window stands beside the full one."""
        full = self.k + 1
        return (_NARROW_WIDTH, full) if full > _NARROW_WIDTH + 2 else (full,)

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.min_n > self.max_n:
            raise ValueError(f"min_n: found {self.min_n}, expected at most max_n = {self.max_n}")
        return self


class ModelDraft(ModelSource):
    """A smaller checkpoint with the target's tokenizer."""

    kind: Literal["model"]
    source: DraftSource
    k: Drafted = 4
    """Tokens drafted per round."""
    capacity: PositiveInt | None = None
    """KV rows of the draft's cache; the target's capacity where it is not given."""
    fused: bool = False
    """All k steps in one graph and one launch, always greedy; pays where a launch costs more than a step."""

    @property
    def default_widths(self) -> tuple[int, ...]:
        """A draft model fills its window nearly always."""
        return (self.k + 1,)


Draft = Annotated[NoneDraft | NgramDraft | ModelDraft, Field(discriminator="kind")]
