"""Drafts of trees whose right nodes are known, for tests of the loop."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from specruntime.drafts import Draft, Proposal, Room, Verdict
from specruntime.sampling.sampler import Sampler
from tests.runtime.scripted_engine import VOCAB

Tree = tuple[list[int], list[int]]  # parents, ranks

CHAIN: Tree = ([0, 1, 2, 3], [0, 0, 0, 0])
BUSHY: Tree = ([0, 0, 0, 1, 1, 2, 4, 4, 6], [0, 1, 2, 0, 1, 0, 0, 1, 0])
LEVELS: Tree = ([0, 0, 1, 1, 2, 2, 3, 6], [0, 1, 0, 1, 0, 1, 0, 0])
STAR: Tree = ([0, 0, 0, 0], [0, 1, 2, 3])
# Depth first: the second child of row 0 comes after the whole subtree of the first.
DEPTH_FIRST: Tree = ([0, 1, 2, 2, 1, 0, 6, 7, 6], [0, 0, 0, 1, 1, 1, 0, 0, 1])
TREES = {"chain": CHAIN, "bushy": BUSHY, "levels": LEVELS, "star": STAR, "depth first": DEPTH_FIRST}


def random_tree(generator: np.random.Generator, nodes: int) -> Tree:
    """Each node hangs on any earlier row; ranks count the siblings before it."""
    parents = [int(generator.integers(0, row)) for row in range(1, nodes + 1)]
    return parents, [parents[:node].count(parent) for node, parent in enumerate(parents)]


def depths_of(parents: Sequence[int]) -> list[int]:
    """[n + 1] the depth of each window row."""
    depths = [0]
    for parent in parents:
        depths.append(depths[parent] + 1)
    return depths


def within(tree: Tree, room: Room) -> Tree:
    """The tree without nodes that are too deep, cut to the nodes there is room for."""
    parents, ranks = tree
    depths = depths_of(parents)
    shallow = [row for row in range(1, len(depths)) if depths[row] <= room.depth]
    rows = [0, *shallow[: room.nodes]]
    return [rows.index(parents[row - 1]) for row in rows[1:]], [ranks[row - 1] for row in rows[1:]]


class TreeTableDraft(Draft):
    """Proposes `tree`, in which the child of rank `right(i)` of a right row holds token i of a known answer.

    All other nodes hold other tokens. `observed` collects what it observed, its features copied.
    """

    def __init__(
        self,
        prompt_length: int,
        answer: Sequence[int],
        trees: Callable[[int], Tree | None],
        right: Callable[[int], int],
    ) -> None:
        super().__init__(99)
        self.observed: list[tuple[Verdict, NDArray[np.float32] | None]] = []
        self.rooms: list[Room] = []
        self._prompt_length, self._answer = prompt_length, list(answer)
        self._trees, self._right = trees, right

    def propose(self, tokens: NDArray[np.int64], room: Room, sampler: Sampler) -> Proposal:
        self.rooms.append(room)
        start = len(tokens) - self._prompt_length
        chosen = self._trees(start)
        if chosen is None:  # a chain, right all along
            return Proposal(np.array(self._answer[start : start + min(room.depth, room.nodes, 4)], np.int64))
        parents, ranks = within(chosen, room)
        depths = depths_of(parents)
        ids, right_rows = [0], {0}
        for row, (parent, rank) in enumerate(zip(parents, ranks, strict=True), start=1):
            index = start + depths[row] - 1
            token = self._answer[index] if index < len(self._answer) else 0
            if parent in right_rows and rank == self._right(index):
                right_rows.add(row)
                ids.append(token)
            else:
                ids.append((token + 1 + rank + row % 7) % VOCAB)
        return Proposal(
            np.array(ids[1:], np.int64), None, np.array(parents, np.int64), np.array(ranks, np.int64)
        )

    def observe(self, verdict: Verdict) -> None:
        self.observed.append((verdict, None if verdict.features is None else verdict.features.copy()))


class SampledTreeDraft(TreeTableDraft):
    """Draws siblings without replacement from its own distribution; `lawful=False` reports a flat one over its support.

    The distribution of a row depends on its token alone.
    """

    def __init__(self, tree: Tree, seed: int, *, lawful: bool = True) -> None:
        super().__init__(0, [], lambda _: tree, lambda _: 0)
        self._tree, self._seed, self._lawful = tree, seed, lawful

    def propose(self, tokens: NDArray[np.int64], room: Room, sampler: Sampler) -> Proposal:
        parents, ranks = within(self._tree, room)
        ids = [int(tokens[-1])]
        laws = np.zeros((len(parents) + 1, VOCAB), np.float32)
        left: dict[int, NDArray[np.float32]] = {}
        stream = sampler.stream(sampler.position, "draft")
        for row, parent in enumerate(parents, start=1):
            if parent not in left:
                laws[parent] = self._law(ids[parent])
                left[parent] = laws[parent].copy()
            ids.append(stream.categorical(left[parent]))
            left[parent][ids[row]] = 0
        if not self._lawful:
            laws = (laws > 0).astype(np.float32)
            laws /= np.maximum(laws.sum(axis=1, keepdims=True), 1)
        return Proposal(
            np.array(ids[1:], np.int64), laws, np.array(parents, np.int64), np.array(ranks, np.int64)
        )

    def _law(self, token: int) -> NDArray[np.float32]:
        weights = np.random.default_rng((self._seed, token)).exponential(size=VOCAB) ** 6
        return np.asarray(weights / weights.sum(), np.float32)
