"""The part of a recipe that says which tree of tokens a draft proposes: spelled out, computed, or grown each round."""

from collections.abc import Iterable
from functools import cached_property
from typing import Annotated, Any, Self

from pydantic import Discriminator, Field, NonNegativeInt, Tag, model_validator

from specexport.recipe.sources import RecipePart
from specexport.trees import Tree, best_tree, tree_of_paths
from specruntime.errors import InvalidArgument

MAX_TREE_NODES = 256
MAX_DEPTH = 64
_MAX_RANKS = 64

Nodes = Annotated[int, Field(ge=1, le=MAX_TREE_NODES)]
Depth = Annotated[int, Field(ge=1, le=MAX_DEPTH)]
Path = Annotated[tuple[NonNegativeInt, ...], Field(min_length=1, max_length=MAX_DEPTH)]
Rates = Annotated[tuple[Annotated[float, Field(ge=0, le=1)], ...], Field(min_length=1, max_length=_MAX_RANKS)]


class SpelledTree(RecipePart):
    """Every node by its path."""

    paths: Annotated[
        tuple[Path, ...], Field(min_length=1, max_length=MAX_TREE_NODES, examples=[[[0], [1], [0, 0]]])
    ]
    """Per node: which candidate of the draft it is, 0 the most likely, at each depth from the last committed token."""

    @cached_property
    def shape(self) -> Tree:
        """The nodes in window order."""
        return tree_of_paths(self.paths)

    @model_validator(mode="after")
    def _check_shape(self) -> Self:
        _require_shape(self, "paths")
        for path in self.paths:
            if max(path) >= _MAX_RANKS:
                raise ValueError(f"paths: found {list(path)}, expected candidates 0..{_MAX_RANKS - 1}")
        return self


class ComputedTree(RecipePart):
    """The tree of `nodes` nodes with the most expected tokens, by acceptance as `specexport tune` measures it."""

    nodes: Annotated[Nodes, Field(examples=[8])]
    """Most drafted tokens per round."""
    depth: Annotated[Depth, Field(examples=[3])]
    """Longest path."""
    acceptance: Annotated[
        tuple[Rates, ...], Field(min_length=1, max_length=MAX_DEPTH, examples=[[[0.6, 0.1], [0.4, 0.1]]])
    ]
    """Per depth: how often the target takes the draft's candidate of each rank, the most likely first."""

    @cached_property
    def shape(self) -> Tree:
        """The nodes in window order; fewer than `nodes` where the rates name no more."""
        return best_tree(self.acceptance, self.nodes, self.depth)

    @model_validator(mode="after")
    def _check_shape(self) -> Self:
        _require_shape(self, "acceptance")
        return self


class DynamicTreeRecipe(RecipePart):
    """A tree grown each round by the draft's own probabilities (EAGLE-2)."""

    nodes: Annotated[Nodes, Field(examples=[8])]
    """Drafted tokens per round: the most likely of all that were grown."""
    depth: Annotated[Depth, Field(examples=[3])]
    """Levels grown."""
    branch: Annotated[int, Field(ge=1, le=_MAX_RANKS, examples=[4])]
    """Nodes of a level that are expanded, and candidates of each."""

    @model_validator(mode="after")
    def _check_sizes(self) -> Self:
        if self.nodes < self.depth:
            raise ValueError(
                f"nodes: found {self.nodes}, expected at least depth = {self.depth}, or no path gets that long"
            )
        grown = self.branch + (self.depth - 1) * self.branch**2
        if self.nodes > grown:
            raise ValueError(
                f"nodes: found {self.nodes}, expected at most {grown}, which is all that a branch of {self.branch} "
                f"grows in {self.depth} levels"
            )
        return self


def _tree_form(value: Any) -> str:
    names_sizes = isinstance(value, dict) and not ComputedTree.model_fields.keys().isdisjoint(value)
    computed = isinstance(value, ComputedTree) or (names_sizes and "paths" not in value)
    return "ComputedTree" if computed else "SpelledTree"


StaticTree = Annotated[
    Annotated[SpelledTree, Tag("SpelledTree")] | Annotated[ComputedTree, Tag("ComputedTree")],
    Discriminator(_tree_form),
]


def _require_shape(tree: SpelledTree | ComputedTree, key: str) -> None:
    try:
        shape = tree.shape
    except InvalidArgument as error:
        raise ValueError(f"{key}: {error}") from None
    if max(shape.ranks) >= _MAX_RANKS:
        raise ValueError(f"{key}: found candidate {max(shape.ranks)}, expected 0..{_MAX_RANKS - 1}")


MAX_DRAFTED = 64

Drafted = Annotated[int, Field(ge=1, le=MAX_DRAFTED)]


class LookupWindow(RecipePart):
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


def most_drafted(nodes: int, lookup: LookupWindow | None) -> int:
    """Most drafted tokens of a window: the draft's own `nodes`, or what lookup finds."""
    return max(nodes, lookup.k if lookup is not None else 0)


def ascending_widths(nodes: int, lookup: LookupWindow | None, *, adaptive: bool) -> tuple[int, ...]:
    """Widths of the windows that judge up to `nodes` drafts: the full one; with `adaptive` 2, 3, 5, 9 ... below it."""
    full = most_drafted(nodes, lookup) + 1
    widths, width = {nodes + 1, full}, 2
    while adaptive and width < full:
        widths.add(width)
        width = 2 * width - 1
    return tuple(sorted(widths))


_LEAST_CANDIDATES = 8


def candidate_count(ranks: Iterable[int], branch: int = 0) -> int:
    """Candidates a row names: enough for the tree, and some more, so that acceptance by rank can be measured."""
    return max(_LEAST_CANDIDATES, branch, *(rank + 1 for rank in ranks))
