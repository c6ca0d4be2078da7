"""Static draft trees: their shape, what they are worth, and the best one for given acceptance rates and times.

Owns the node order. Row 0 of a window is the last committed token; node i sits in row i + 1, level by level, so a
parent comes before its children and the rows of an accepted path ascend. Knows nothing of graphs, drafts or bundles.

`acceptance[d][r]` is the probability that the token at depth d + 1 is its parent's candidate of rank r, given that
the parent was accepted; the ranks of one depth exclude each other, so they sum to at most 1.
"""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from specruntime.errors import InvalidArgument
from specruntime.manifest.draft import depths_of

Rates = Sequence[Sequence[float]]
Path = tuple[int, ...]

_ROUNDING = 1e-6  # by which measured rates of one depth may pass 1


@dataclass(frozen=True, slots=True)
class Tree:
    """Nodes 1..N in window order: the window row of each one's parent, and its rank among the parent's candidates."""

    parents: tuple[int, ...]
    ranks: tuple[int, ...]

    def __post_init__(self) -> None:
        """Raise `InvalidArgument` for what no window can hold: orphans, two equal children, mixed levels."""
        if len(self.parents) != len(self.ranks) or not self.parents:
            raise InvalidArgument(
                f"a tree has {len(self.parents)} parents and {len(self.ranks)} ranks, expected as many of each, "
                "one or more"
            )
        depths, children = [0], set()
        for row, (parent, rank) in enumerate(zip(self.parents, self.ranks, strict=True), start=1):
            if not 0 <= parent < row or rank < 0:
                raise InvalidArgument(
                    f"tree node {row} has parent {parent} and rank {rank}, expected a parent in an earlier row "
                    f"(0 to {row - 1}) and a rank of 0 or more"
                )
            if (parent, rank) in children:
                raise InvalidArgument(
                    f"tree node {row}: row {parent} has two children of rank {rank}; keep one"
                )
            children.add((parent, rank))
            depths.append(depths[parent] + 1)
            if depths[row] < depths[row - 1]:
                raise InvalidArgument(
                    f"tree node {row} has depth {depths[row]} behind a node of depth {depths[row - 1]}: "
                    "order the nodes level by level"
                )

    @property
    def depths(self) -> tuple[int, ...]:
        """The depth of each node; 1 for the children of row 0."""
        return depths_of(self.parents)

    @property
    def paths(self) -> tuple[Path, ...]:
        """For each node, the ranks that lead to it from row 0."""
        paths: list[Path] = [()]
        for parent, rank in zip(self.parents, self.ranks, strict=True):
            paths.append((*paths[parent], rank))
        return tuple(paths[1:])


@dataclass(frozen=True, slots=True)
class TimedTree:
    """The shape of highest predicted speed: `tokens` of one round over its time `ms`. `tree` None: plain decoding."""

    tree: Tree | None
    tokens: float
    ms: float

    @property
    def tokens_per_second(self) -> float:
        return 1e3 * self.tokens / self.ms


def tree_of_paths(paths: Sequence[Sequence[int]]) -> Tree:
    """Return the tree whose nodes are `paths`, each a list of ranks from row 0 down, in any order (Medusa's `choices`).

    Raises `InvalidArgument` for an empty path, one named twice, or one whose prefix is not a node.
    """
    rows: dict[Path, int] = {(): 0}
    parents, ranks = [], []
    for path in sorted((tuple(path) for path in paths), key=lambda path: (len(path), path)):
        if not path:
            raise InvalidArgument(
                "an empty path is the last committed token, which every tree has: leave it out"
            )
        if path in rows:
            raise InvalidArgument(f"the tree names {list(path)} twice: keep one")
        if path[:-1] not in rows:
            raise InvalidArgument(
                f"the tree has {list(path)} but not {list(path[:-1])}, which leads to it: add that or leave out both"
            )
        rows[path] = len(rows)
        parents.append(rows[path[:-1]])
        ranks.append(path[-1])
    return Tree(tuple(parents), tuple(ranks))


def chain_of(length: int) -> Tree:
    """`length` nodes in a row, each its parent's most likely candidate."""
    return Tree(tuple(range(length)), (0,) * length)


def expected_tokens(tree: Tree, acceptance: Rates) -> float:
    """Mean tokens of a round: the target's own, and each node times the probability that it is accepted.

    Raises `InvalidArgument` for invalid rates, or a node whose depth or rank has no rate.
    """
    _require_rates(acceptance)
    probabilities = [1.0]
    for parent, rank, depth in zip(tree.parents, tree.ranks, tree.depths, strict=True):
        if depth > len(acceptance) or rank >= len(acceptance[depth - 1]):
            raise InvalidArgument(
                f"the tree has a candidate of rank {rank} at depth {depth}, for which no acceptance rate is given: "
                "measure deeper and wider, or take it out"
            )
        probabilities.append(probabilities[parent] * acceptance[depth - 1][rank])
    return float(sum(probabilities))


def best_tree(acceptance: Rates, nodes: int, depth: int) -> Tree:
    """Return the tree of at most `nodes` nodes and `depth` levels with the most expected tokens.

    Rates depend on depth and rank alone, so a node is worth the product of the rates along its path, and never more
    than its parent: taking the most likely path each time is optimal (the dynamic programme of Sequoia, Chen et al.
    2024, is for rates that depend on the number of siblings). Ties go to the shallower node, then to lower ranks.
    Paths of probability 0 are left out. Raises `InvalidArgument` for rates that are invalid or all 0.
    """
    _require_rates(acceptance)
    if not (nodes >= 1 and 1 <= depth <= len(acceptance)):
        raise InvalidArgument(
            f"a tree of {nodes} nodes and {depth} levels was asked for, expected at least one node and 1 to "
            f"{len(acceptance)} levels, as many as there are acceptance rates for"
        )
    chosen: list[Path] = []
    frontier: list[tuple[float, int, Path]] = [
        (-rate, 1, (rank,)) for rank, rate in enumerate(acceptance[0]) if rate > 0
    ]
    heapq.heapify(frontier)
    while frontier and len(chosen) < nodes:
        worth, level, path = heapq.heappop(frontier)
        chosen.append(path)
        if level < depth:
            for rank, rate in enumerate(acceptance[level]):
                if rate > 0:
                    heapq.heappush(frontier, (worth * rate, level + 1, (*path, rank)))
    if not chosen:
        raise InvalidArgument(
            "every acceptance rate of the first depth is 0: no tree is worth its first node"
        )
    return tree_of_paths(chosen)


def best_tree_for_times(
    acceptance: Rates, step_ms: Mapping[int, float], draft_ms: Sequence[float], overhead_ms: float = 0.0
) -> TimedTree:
    """Return the tree, or plain decoding, of most expected tokens per second (the speed-up formula, node budget
    included).

    `step_ms` is the target's time by window width, width 1 (plain) among them; widths between two measured ones are
    interpolated, wider ones are not considered. `draft_ms[d - 1]` is the time of drafting d levels. Raises
    `InvalidArgument` for times that are missing or not positive.
    """
    _require_times(acceptance, step_ms, draft_ms)
    best = TimedTree(None, 1.0, step_ms[1] + overhead_ms)
    widths = sorted(step_ms)
    for depth in range(1, len(acceptance) + 1):
        for nodes in range(depth, widths[-1]):
            tree = best_tree(acceptance, nodes, depth)
            if len(tree.parents) < nodes:
                break  # no more paths of this depth
            verify = float(np.interp(nodes + 1, widths, [step_ms[width] for width in widths]))
            spent = verify + draft_ms[max(tree.depths) - 1] + overhead_ms
            found = TimedTree(tree, expected_tokens(tree, acceptance), spent)
            if found.tokens_per_second > best.tokens_per_second:
                best = found
    return best


def _require_rates(acceptance: Rates) -> None:
    if not acceptance:
        raise InvalidArgument(
            "there are no acceptance rates, expected a list of rates by rank for each depth"
        )
    for depth, rates in enumerate(acceptance, start=1):
        if not rates or not all(0 <= rate <= 1 for rate in rates) or sum(rates) > 1 + _ROUNDING:
            raise InvalidArgument(
                f"the acceptance rates at depth {depth} are {list(rates)}, expected one or more from 0 to 1 that sum "
                "to at most 1: candidates of one parent exclude each other"
            )


def _require_times(acceptance: Rates, step_ms: Mapping[int, float], draft_ms: Sequence[float]) -> None:
    if 1 not in step_ms or not all(width >= 1 and ms > 0 for width, ms in step_ms.items()):
        raise InvalidArgument(
            f"step times are {dict(step_ms)}, expected milliseconds above 0 by width, width 1 among them"
        )
    if len(draft_ms) < len(acceptance) or not all(ms >= 0 for ms in draft_ms):
        raise InvalidArgument(
            f"draft times are {list(draft_ms)}, expected milliseconds for each of {len(acceptance)} depths"
        )
