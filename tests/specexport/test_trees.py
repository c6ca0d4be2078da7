"""Trees: window order, expected worth, and the best one, against exhaustive search and golden values."""

from itertools import product

import pytest

from specexport.trees import (
    Tree,
    best_tree,
    best_tree_for_times,
    chain_of,
    expected_tokens,
    tree_of_paths,
)
from specruntime.errors import InvalidArgument

UNEVEN = [[0.5, 0.2, 0.1], [0.3, 0.45], [0.6, 0.3, 0.05]]  # a later rank may be the likelier one


def test_paths_in_any_order_give_one_tree_level_by_level() -> None:
    tree = tree_of_paths([[0, 1, 0], [1], [0], [0, 1], [0, 0], [1, 2]])
    assert tree == Tree(parents=(0, 0, 1, 1, 2, 4), ranks=(0, 1, 0, 1, 2, 0))
    assert tree.depths == (1, 1, 2, 2, 2, 3)
    assert tree.paths == ((0,), (1,), (0, 0), (0, 1), (1, 2), (0, 1, 0))


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ([[0], [1, 0]], r"has \[1, 0\] but not \[1\]"),
        ([[0], [0, 1], [0, 1]], r"names \[0, 1\] twice"),
        ([[]], "empty path"),
        ([[-1]], "rank -1"),
        ([], "one or more"),
    ],
)
def test_paths_that_are_no_tree_are_refused(paths: list[list[int]], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        tree_of_paths(paths)


@pytest.mark.parametrize(
    ("parents", "ranks", "message"),
    [
        ((1,), (0,), "earlier row"),
        ((0, 0), (1, 1), "two children of rank 1"),
        ((0, 1, 0), (0, 0, 1), "level by level"),
        ((0, 1), (0,), "as many of each"),
    ],
)
def test_rows_that_are_no_tree_are_refused(
    parents: tuple[int, ...], ranks: tuple[int, ...], message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        Tree(parents, ranks)


@pytest.mark.parametrize(("rate", "k", "tokens"), [(0.7, 4, 2.773), (0.8, 4, 3.362), (0.9, 7, 5.695)])
def test_a_chain_of_even_rates_is_worth_its_geometric_sum(rate: float, k: int, tokens: float) -> None:
    assert expected_tokens(chain_of(k), [[rate]] * k) == pytest.approx(tokens, abs=5e-4)


def test_a_tree_is_worth_one_token_and_its_paths() -> None:
    tree = tree_of_paths([[0], [1], [0, 1], [0, 1, 0]])
    assert expected_tokens(tree, UNEVEN) == pytest.approx(1 + 0.5 + 0.2 + 0.5 * 0.45 + 0.5 * 0.45 * 0.6)


def all_trees(acceptance: list[list[float]], nodes: int, depth: int) -> set[frozenset[tuple[int, ...]]]:
    """Every prefix-closed set of `nodes` paths, grown one node at a time."""
    every = [
        path
        for level in range(1, depth + 1)
        for path in product(*(range(len(r)) for r in acceptance[:level]))
    ]
    grown: set[frozenset[tuple[int, ...]]] = {frozenset()}
    for _ in range(nodes):
        grown = {
            tree | {path}
            for tree in grown
            for path in every
            if path not in tree and (len(path) == 1 or path[:-1] in tree)
        }
    return grown


@pytest.mark.parametrize(
    "acceptance", [UNEVEN, [[0.4, 0.4], [0.9], [0.5, 0.5]], [[0.1, 0.9], [0.2, 0.2, 0.2]]]
)
@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 5])
def test_no_tree_of_the_budget_beats_the_best_tree(acceptance: list[list[float]], nodes: int) -> None:
    for depth in range(1, len(acceptance) + 1):
        found = expected_tokens(best_tree(acceptance, nodes, depth), acceptance)
        rivals = all_trees(acceptance, nodes, depth)
        worths = [expected_tokens(tree_of_paths(sorted(paths)), acceptance) for paths in rivals]
        if worths:
            assert found == pytest.approx(max(worths))


def test_the_search_tells_trees_apart() -> None:
    worths = [expected_tokens(tree_of_paths(sorted(paths)), UNEVEN) for paths in all_trees(UNEVEN, 3, 3)]
    assert len(worths) > 10 and min(worths) < max(worths) - 0.3


def test_the_best_tree_keeps_to_its_depth_and_drops_what_never_happens() -> None:
    assert best_tree(UNEVEN, 50, 2).depths.count(3) == 0
    assert best_tree([[0.5, 0.0], [0.0]], 9, 2) == chain_of(1)


@pytest.mark.parametrize(
    ("rate", "cost", "k", "speed_up"),
    [(0.8, 0.05, 8, 3.09), (0.7, 0.1, 4, 1.98), (0.6, 0.2, 2, 1.40)],
)
def test_times_choose_the_golden_chain(rate: float, cost: float, k: int, speed_up: float) -> None:
    flat = {1: 1.0, 16: 1.0}
    found = best_tree_for_times([[rate]] * 15, flat, [cost * depth for depth in range(1, 16)])
    assert found.tree == chain_of(k)
    assert found.tokens / found.ms == pytest.approx(speed_up, abs=5e-3)


def test_plain_decoding_wins_when_drafts_cost_what_they_bring() -> None:
    found = best_tree_for_times([[0.5]] * 4, {1: 1.0, 5: 1.0}, [0.51, 1.02, 1.53, 2.04])
    assert found.tree is None
    assert found.tokens_per_second == pytest.approx(1000)


def test_the_node_budget_stops_where_a_wider_window_costs_more_than_it_brings() -> None:
    acceptance = [[0.5, 0.2, 0.1, 0.05]] * 3
    cheap = best_tree_for_times(acceptance, {1: 20.0, 40: 22.0}, [1.0, 2.0, 3.0])
    dear = best_tree_for_times(acceptance, {1: 20.0, 4: 22.0, 40: 200.0}, [1.0, 2.0, 3.0])
    assert cheap.tree is not None and dear.tree is not None
    assert len(cheap.tree.parents) > len(dear.tree.parents)
    assert len(dear.tree.parents) == 3


@pytest.mark.parametrize(
    ("acceptance", "message"),
    [
        ([], "no acceptance rates"),
        ([[0.7, 0.4]], "sum to at most 1"),
        ([[1.1]], "depth 1"),
        ([[0.0]], "is 0"),
    ],
)
def test_rates_that_are_none_are_refused(acceptance: list[list[float]], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        best_tree(acceptance, 3, 1)


def test_a_node_without_a_rate_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="rank 2 at depth 1"):
        expected_tokens(Tree((0,), (2,)), [[0.5, 0.2]])


def test_a_tree_deeper_than_its_rates_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="1 to 3 levels"):
        best_tree(UNEVEN, 5, 4)


def test_times_without_plain_decoding_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="width 1 among them"):
        best_tree_for_times([[0.5]], {4: 1.0}, [0.1])
    with pytest.raises(InvalidArgument, match="each of 2 depths"):
        best_tree_for_times([[0.5], [0.5]], {1: 1.0}, [0.1])
