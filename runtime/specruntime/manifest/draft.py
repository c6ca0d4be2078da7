"""What kinds of draft share in a manifest: static trees, and the checks of a draft against its target.

Each check raises `BundleInvalid` naming the key and both values. Reads no files.
"""

from collections.abc import Iterable, Sequence
from typing import Annotated

from pydantic import Field

from specruntime.manifest.graph import GraphSpec, Profile
from specruntime.manifest.numbers import MAX_NODES, Closed, Index
from specruntime.manifest.refusals import refuse


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


def check_tree(target: GraphSpec, tree: TreeSpec, candidates: int) -> None:
    """Require that the tree is sound, its ranks are among the `candidates` a row, and the target can judge trees."""
    if len(tree.parents) != len(tree.ranks):
        refuse(f"draft.tree has {len(tree.parents)} parents and {len(tree.ranks)} ranks, expected as many")
    for node, parent in enumerate(tree.parents):
        if parent > node:
            refuse(
                f"draft.tree: node {node}, window row {node + 1}, has parent row {parent}, expected an earlier"
            )
    siblings = list(zip(tree.parents, tree.ranks, strict=True))
    for node, (parent, rank) in enumerate(siblings):
        if (parent, rank) in siblings[:node]:
            refuse(f"draft.tree: row {parent} has two children of rank {rank}, expected each rank once")
        if rank >= candidates:
            refuse(
                f"draft.tree: node {node} has rank {rank}, but the draft's graph names {candidates} candidates a row"
            )
    check_masked(target)


def check_masked(target: GraphSpec) -> None:
    """Require mask and positions: a tree's rows see their ancestors only, and siblings share a position: both must be
    inputs.
    """
    names = {tensor.name for tensor in target.inputs}
    for name in ("window_mask", "position_ids"):
        if name not in names:
            refuse(f"draft has a tree, but the target has no input {name!r}, so it judges chains only")


def check_features(target: GraphSpec, graph: GraphSpec) -> None:
    """Require that what the target shows of each row is what the draft's layer takes."""
    if all(tensor.name != "features" for tensor in target.outputs):
        refuse("draft.graph takes hidden, but target.outputs has no 'features' to give it")
    given, taken = last_size(target, "features"), last_size(graph, "hidden")
    if given != taken:
        refuse(f"target gives features of {given}, but draft.graph takes hidden of {taken}")
    for profile in target.profiles:
        if profile.computes("top_ids") and not profile.computes("features"):
            refuse(f"target: profile {profile.name!r} does not compute the features that the draft needs")


def check_computed(graph: GraphSpec, outputs: Sequence[str]) -> None:
    """Every profile of the draft's graph computes these outputs."""
    for profile in graph.profiles:
        for output in outputs:
            if not profile.computes(output):
                refuse(
                    f"draft.graph: profile {profile.name!r} does not compute {output!r}, which this draft reads"
                )


def check_one_row(graph: GraphSpec, name: str, label: str = "draft.graph") -> Profile:
    """Require a profile `name` of width 1 that judges its row, and return it."""
    profile = next((profile for profile in graph.profiles if profile.name == name), None)
    if profile is None:
        refuse(f"{label} has no profile {name!r}, which this draft runs")
    assert profile is not None, "refused otherwise"
    if (profile.width, profile.rows) != (1, 1):
        refuse(
            f"{label}: profile {name!r} is {profile.width} wide with {profile.rows} rows, expected 1 and 1"
        )
    return profile


def check_room(key: str, nodes: int, target: GraphSpec) -> None:
    """Require that the target judges `nodes` drafted tokens, which `key` asks for, in one window."""
    judged = max(profile.rows for profile in target.profiles if profile.computes("top_ids"))
    if nodes + 1 > judged:
        refuse(
            f"{key} is {nodes}, but the widest target profile judges {judged} rows, and {nodes + 1} are needed"
        )


def topk_sizes(graph: GraphSpec) -> Sequence[int]:
    """Return the sizes behind [B, R] of topk_ids: [K], or [heads, K]."""
    shapes = {t.name: t.shape[2:] for t in graph.outputs if t.name in ("topk_ids", "topk_logprobs")}
    ids, logprobs = shapes["topk_ids"], shapes["topk_logprobs"]
    if ids != logprobs:
        refuse(f"draft.graph: topk_ids has {list(ids)} candidates, topk_logprobs {list(logprobs)}")
    return [size for size in ids if isinstance(size, int)]


def last_size(graph: GraphSpec, name: str) -> int:
    """Return the last dimension of an input or output that the graph's contract has, which is fixed."""
    tensors = (*graph.inputs, *graph.outputs)
    size = next(tensor.shape[-1] for tensor in tensors if tensor.name == name)
    assert isinstance(size, int), "checked against the graph's contract"
    return size
