"""Trees stay trees: whatever is grown, trimmed or chosen, parents come first and paths ascend."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specruntime.drafts.trees import (
    GrowingTree,
    StaticTree,
    Trimmings,
    static_tree,
    trimmed,
    without_nodes,
)


@st.composite
def shapes(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Parents and ranks in any order that puts parents first; siblings have different ranks."""
    parents = [draw(st.integers(0, row)) for row in range(draw(st.integers(1, 16)))]
    ranks = [parents[:node].count(parent) for node, parent in enumerate(parents)]
    return parents, ranks


def paths_of(parents: np.ndarray, ranks: np.ndarray) -> list[tuple[int, ...]]:
    paths: list[tuple[int, ...]] = [()]
    for row, (parent, rank) in enumerate(zip(parents.tolist(), ranks.tolist(), strict=True), start=1):
        assert 0 <= parent < row, "parents before children"
        paths.append((*paths[parent], rank))
    assert len(set(paths)) == len(paths)
    return paths[1:]


def check_levels(tree: StaticTree) -> None:
    """Replays the levels with paths for ids: every node must come out as its own path."""
    paths = paths_of(tree.parents, tree.ranks)
    made: list[tuple[int, ...]] = []
    slots: list[tuple[int, ...]] = []
    for depth, level in enumerate(tree.levels, start=1):
        rows = [made[node] for node in level.asked] if depth > 1 else [()]
        for path, parent in zip(rows if depth > 1 else [], level.asked_parents.tolist(), strict=True):
            assert path[:-1] == (slots[parent] if parent >= 0 else ()), "a slot is that of the node's parent"
            assert len(path) == depth - 1
        slots += rows if depth > 1 else []
        assert level.start == len(made)
        made += [(*rows[source], rank) for source, rank in zip(level.sources, level.ranks, strict=True)]
        assert level.stop == len(made) > level.start
        assert set(level.sources.tolist()) == set(range(len(rows))), "only rows with children are asked"
        assert [len(path) for path in made[level.start :]] == [depth] * (level.stop - level.start)
    assert made == paths
    assert tree.depths.tolist() == [len(path) for path in paths]


@given(shapes())
def test_a_static_tree_keeps_its_paths_level_by_level(shape: tuple[list[int], list[int]]) -> None:
    tree = static_tree(*shape)
    assert sorted(paths_of(tree.parents, tree.ranks)) == sorted(paths_of(*map(np.array, shape)))
    assert (np.diff(tree.depths) >= 0).all()
    check_levels(tree)


@given(shapes(), st.integers(0, 6), st.integers(0, 18))
def test_a_trimmed_tree_is_a_tree_within_its_room(
    shape: tuple[list[int], list[int]], depth: int, nodes: int
) -> None:
    tree = static_tree(*shape)
    left = trimmed(tree, depth, nodes)
    check_levels(left)
    assert len(left.levels) <= depth
    within = [path for path in paths_of(tree.parents, tree.ranks) if len(path) <= depth]
    assert len(left.parents) == min(nodes, len(within)), "no room is wasted"
    kept = set(paths_of(left.parents, left.ranks))
    assert kept <= set(within)
    worth = {path: np.prod([1 / (2 + 3 * rank) for rank in path]) for path in within}
    assert (
        not kept
        or min(worth[p] for p in kept) >= max((worth[p] for p in set(within) - kept), default=0) - 1e-12
    )


def test_room_for_everything_leaves_the_tree_as_it_is() -> None:
    tree = static_tree([0, 0, 1, 3], [0, 1, 0, 0])
    trees = Trimmings(tree)
    assert trees.within(99, 99) is tree and trees.within(3, 4) is tree
    assert trees.within(1, 99) is trees.within(1, 4)
    assert trees.within(2, 2).parents.tolist() == [0, 1], "the most likely chain rather than its sibling"


def test_level_order_keeps_the_order_of_siblings() -> None:
    tree = static_tree([0, 1, 2, 0, 4, 1], [2, 0, 0, 1, 3, 1])  # depth first
    assert tree.parents.tolist() == [0, 0, 1, 2, 1, 3]
    assert tree.ranks.tolist() == [2, 1, 0, 3, 1, 0]


@given(shapes(), st.data())
def test_dropping_nodes_drops_what_hangs_on_them(
    shape: tuple[list[int], list[int]], data: st.DataObject
) -> None:
    tree = static_tree(*shape)
    count = len(tree.parents)
    alive = np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)))
    before = alive.copy()
    kept, parents = without_nodes(tree.parents, alive)
    assert np.array_equal(alive, before), "the caller's array is only read"
    paths = paths_of(tree.parents, tree.ranks)
    dead = {path for path, lives in zip(paths, alive, strict=True) if not lives}
    expected = [path for path in paths if not any(path[:end] in dead for end in range(1, len(path) + 1))]
    assert [paths[node] for node in kept] == expected
    assert paths_of(parents, tree.ranks[kept]) == expected


class Candidates:
    """Fixed log-probabilities for every path, coarse enough that ties are frequent."""

    def __init__(self, seed: int, count: int) -> None:
        self.seed, self.count = seed, count

    def of(self, path: tuple[int, ...]) -> np.ndarray:
        rng = np.random.default_rng([self.seed, *path, 99])
        return -np.sort(rng.integers(0, 6, self.count)).astype(np.float64)


def grow(candidates: Candidates, nodes: int, branch: int, depth: int) -> tuple[GrowingTree, list[int]]:
    """(the tree, rows asked at each level); ids are numbers of paths."""
    tree = GrowingTree(nodes, branch)
    paths: list[tuple[int, ...]] = []
    asked_paths: list[tuple[int, ...]] = [()]
    asked_counts = []
    for _ in range(depth):
        asked_counts.append(len(asked_paths))
        ids = np.arange(len(paths), len(paths) + len(asked_paths) * candidates.count)
        paths += [(*path, rank) for path in asked_paths for rank in range(candidates.count)]
        logprobs = np.stack([candidates.of(path) for path in asked_paths])
        asked = tree.grow(ids.reshape(logprobs.shape), logprobs)
        assert (np.diff(asked) > 0).all() and len(asked) <= branch
        asked_paths = [paths[i] for i in tree.ids(asked)]
        parents = tree.parents(asked)
        assert [paths[i] if i >= 0 else () for i in parents] == [path[:-1] for path in asked_paths]
        if not asked_paths:
            break
    tree.paths = paths  # type: ignore[attr-defined]
    return tree, asked_counts


@given(st.integers(0, 500), st.integers(1, 12), st.integers(1, 5), st.integers(1, 5), st.integers(1, 4))
def test_a_grown_tree_is_the_best_of_what_was_asked(
    seed: int, nodes: int, branch: int, count: int, depth: int
) -> None:
    candidates = Candidates(seed, count)
    tree, asked = grow(candidates, nodes, branch, depth)
    ids, parents, ranks = tree.chosen(nodes)
    paths = paths_of(parents, ranks)
    assert [tree.paths[i] for i in ids] == paths  # type: ignore[attr-defined]
    assert len(paths) == min(nodes, len(tree.paths))  # type: ignore[attr-defined]
    assert all(len(path) <= depth for path in paths) and max(asked) <= max(branch, 1)
    assert sorted(_worths(candidates, paths)) == sorted(_reference(candidates, nodes, branch, depth))


def _worths(candidates: Candidates, paths: list[tuple[int, ...]]) -> list[float]:
    return [float(sum(candidates.of(p[:end])[p[end]] for end in range(len(p)))) for p in paths]


def _reference(candidates: Candidates, nodes: int, branch: int, depth: int) -> list[float]:
    """EAGLE-2 as published: expand the best `branch` of each level, then take the best `nodes` of all candidates."""
    level: list[tuple[int, ...]] = [()]
    everything: list[tuple[int, ...]] = []
    for _ in range(depth):
        found = [(*path, rank) for path in level for rank in range(candidates.count)]
        everything += found
        order = sorted(range(len(found)), key=lambda i: -_worths(candidates, [found[i]])[0])
        level = [found[i] for i in sorted(order[:branch])]
    return sorted(_worths(candidates, everything), reverse=True)[:nodes]


@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 6])
def test_with_room_to_expand_everything_no_subtree_is_better(nodes: int) -> None:
    """Against every subtree of the full tree of two candidates and three levels."""
    everything = [
        tuple(int(bit) for bit in f"{number:0{depth}b}") for depth in (1, 2, 3) for number in range(2**depth)
    ]
    for seed in range(6):
        candidates = Candidates(seed, 2)
        tree, _ = grow(candidates, nodes, 8, 3)
        ids, _, _ = tree.chosen(nodes)
        found = sum(np.exp(_worths(candidates, [tree.paths[i] for i in ids])))  # type: ignore[attr-defined]
        best = max(
            sum(np.exp(_worths(candidates, list(subset))))
            for subset in combinations(everything, nodes)
            if all(path[:-1] in subset or len(path) == 1 for path in subset)
        )
        assert found == pytest.approx(best)


def test_rounding_above_probability_one_orphans_no_node() -> None:
    tree = GrowingTree(3, 2)
    tree.grow(np.array([[1, 2]]), np.array([[-0.1, -5.0]], np.float32))
    tree.grow(np.array([[3, 4]]), np.array([[1e-7, -9.0]], np.float32))
    ids, parents, _ = tree.chosen(2)
    assert ids.tolist() == [1, 3] and parents.tolist() == [0, 1]


def test_a_draft_that_answers_nonsense_still_gives_a_tree() -> None:
    tree = GrowingTree(4, 2)
    tree.grow(np.array([[1, 2]]), np.array([[np.nan, -np.inf]]))
    tree.grow(np.array([[3, 4], [5, 6]]), np.array([[-1.0, np.nan], [-1.0, -np.inf]]))
    _, parents, ranks = tree.chosen(4)
    paths_of(parents, ranks)
