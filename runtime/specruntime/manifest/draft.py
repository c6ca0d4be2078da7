"""The manifest's description of each way to draft: lengths, trees, and the graph where there is one.

Every kind but `none` has `k`, the most tokens one round can accept of it, and `nodes`, the most it puts into a window.
"""

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field

from specruntime.manifest.graph import Closed, GraphSpec
from specruntime.manifest.numbers import MAX_LAYERS, MAX_NODES, Index, Share, Size


def depths_of(parents: Iterable[int]) -> tuple[int, ...]:
    """[n] the depth of each node of a tree, given the window row of its parent; 1 for the children of row 0."""
    depths = [0]
    for parent in parents:
        depths.append(depths[parent] + 1)
    return tuple(depths[1:])


class TreeSpec(Closed):
    """A static tree of drafted tokens. Window row 0 is the last committed token, node i is row i + 1.

    `parents` [n] is the window row of each node's parent, an earlier row; `ranks` [n] which of the parent's candidates
    the node is, 0 the most likely.
    """

    parents: Annotated[tuple[Index, ...], Field(min_length=1, max_length=MAX_NODES)]
    ranks: Annotated[tuple[Index, ...], Field(min_length=1, max_length=MAX_NODES)]

    @property
    def depths(self) -> tuple[int, ...]:
        """[n] as of `depths_of`."""
        return depths_of(self.parents)

    @property
    def depth(self) -> int:
        return max(self.depths)


class DynamicTree(Closed):
    """A tree grown anew each round (EAGLE-2): `branch` nodes expanded per level, the best `nodes` of all judged."""

    nodes: Annotated[int, Field(ge=1, le=MAX_NODES)]
    branch: Size


class NoneDraft(Closed):
    kind: Literal["none"] = "none"


class _Chain(Closed):
    """A kind whose drafts follow each other in one line."""

    k: Size

    @property
    def nodes(self) -> int:
        return self.k


class NgramDraft(_Chain):
    """Prompt lookup: match the last n tokens (n from `max_n` down to `min_n`) and copy up to `k` that followed."""

    kind: Literal["ngram"] = "ngram"
    max_n: Size
    min_n: Size


class ModelDraft(_Chain):
    """A smaller checkpoint that proposes `k` tokens: one step each, or all of them in one `fused` launch.

    It drafts no further once its own probability of a drafted token falls below `stop_below`.
    """

    kind: Literal["model"] = "model"
    fused: bool = False
    stop_below: Share | None = None
    graph: GraphSpec


class LayerSkipDraft(_Chain):
    """The target with `layers` of its own: profile `draft` of the target's graph, or `graph` where that is a copy."""

    kind: Literal["layer_skip"] = "layer_skip"
    layers: Annotated[tuple[Index, ...], Field(min_length=1, max_length=MAX_LAYERS)]
    graph: GraphSpec | None = None


class MedusaDraft(Closed):
    """Heads on the target's last hidden state; head i drafts the tokens of depth i + 1 of a static tree."""

    kind: Literal["medusa"] = "medusa"
    heads: Size
    tree: TreeSpec
    graph: GraphSpec

    @property
    def k(self) -> int:
        return self.tree.depth

    @property
    def nodes(self) -> int:
        return len(self.tree.parents)


class TappedLayers(Closed):
    """The hidden states of the target that feed an EAGLE-3 draft: what enters these layers, and how that is known."""

    entering: Annotated[tuple[Index, ...], Field(min_length=1, max_length=MAX_LAYERS)]
    """The number of layers stands for what leaves the last."""
    reason: Annotated[str, Field(max_length=400)]


class EagleDraft(Closed):
    """One decoder layer on target features, `k` steps deep: a chain, a static `tree`, or a `dynamic` one.

    A chain is drafted no further once the draft's own probability of a token falls below `stop_below`.
    """

    kind: Literal["eagle", "eagle3"]
    k: Size
    tree: TreeSpec | None = None
    dynamic: DynamicTree | None = None
    stop_below: Share | None = None
    tapped: TappedLayers | None = None
    graph: GraphSpec

    @property
    def nodes(self) -> int:
        if self.dynamic is not None:
            return self.dynamic.nodes
        return self.k if self.tree is None else len(self.tree.parents)


DraftSpec = Annotated[
    NoneDraft | NgramDraft | ModelDraft | LayerSkipDraft | MedusaDraft | EagleDraft,
    Field(discriminator="kind"),
]


def draft_graph(draft: DraftSpec) -> GraphSpec | None:
    """The draft's own graph; None for kinds without one."""
    return None if isinstance(draft, NoneDraft | NgramDraft) else draft.graph


def grows_trees(draft: DraftSpec) -> bool:
    """Whether its proposals are trees rather than chains."""
    if isinstance(draft, EagleDraft):
        return draft.tree is not None or draft.dynamic is not None
    return isinstance(draft, MedusaDraft)
