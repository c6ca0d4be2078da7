"""The part of a recipe that says how many tokens a round drafts: fixed or following acceptance, and prompt lookup."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from specexport.recipe_sources import Closed

MAX_DRAFTED = 64

Drafted = Annotated[int, Field(ge=1, le=MAX_DRAFTED)]


class LookupWindow(Closed):
    """Prompt lookup: what followed the last n tokens where they occurred before."""

    k: Drafted = 10
    """Most tokens drafted per round."""
    max_n: Annotated[int, Field(ge=1, le=16)] = 3
    """The longest n that is looked for, and the first."""
    min_n: Annotated[int, Field(ge=1, le=16)] = 1
    """The shortest n that is looked for."""

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.min_n > self.max_n:
            raise ValueError(f"min_n: found {self.min_n}, expected at most max_n = {self.max_n}")
        return self


class Lengths(Closed):
    """What a kind with a draft of its own says of its length."""

    adaptive: bool = False
    """The number of drafted tokens follows recent acceptance and the measured step times; 0 where drafts do not pay."""
    lookup: LookupWindow | None = None
    """With adaptive: prompt lookup beside the draft, wherever it promises more."""

    @model_validator(mode="after")
    def _check_lookup(self) -> Self:
        if self.lookup is not None and not self.adaptive:
            raise ValueError("lookup: found without adaptive: true, which chooses between the two; add that")
        return self


def most_drafted(nodes: int, lookup: LookupWindow | None) -> int:
    """Most drafted tokens of a window: the draft's own `nodes`, or what lookup finds."""
    return max(nodes, lookup.k if lookup is not None else 0)


def ascending_widths(nodes: int, lengths: Lengths) -> tuple[int, ...]:
    """Widths of the windows that judge up to `nodes` drafts: the full one; with `adaptive` 2, 3, 5, 9 ... below it."""
    full = most_drafted(nodes, lengths.lookup) + 1
    widths, width = {nodes + 1, full}, 2
    while lengths.adaptive and width < full:
        widths.add(width)
        width = 2 * width - 1
    return tuple(sorted(widths))
