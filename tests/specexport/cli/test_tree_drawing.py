"""A drawn tree: children under their parents, nothing on top of each other, probabilities of whole paths."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from specexport.cli import main
from specexport.cli.tree_drawing import (
    draw_tree,
    drawn_tree,
    node_probabilities,
    place_nodes,
    require_drawing,
)
from specexport.trees import best_tree, expected_tokens, tree_of_paths
from specruntime.errors import InvalidArgument
from tests.conftest import RECIPES

RATES = [[0.45, 0.15, 0.08], [0.4, 0.12], [0.35, 0.1]]


def test_no_two_nodes_share_a_place_and_levels_keep_the_order_of_ranks() -> None:
    tree = best_tree(RATES, 12, 3)
    places, leaves = place_nodes(tree)
    assert len(set(places)) == len(places) == 13
    assert [depth for _, depth in places] == [0, *tree.depths]
    parents = set(tree.parents)
    assert leaves == sum(row not in parents for row in range(1, 13))
    for depth in (1, 2, 3):
        level = sorted(
            (tree.paths[row - 1], places[row][0]) for row in range(1, 13) if places[row][1] == depth
        )
        assert [x for _, x in level] == sorted(x for _, x in level)


def test_a_parent_stands_over_the_middle_of_its_children() -> None:
    places, _ = place_nodes(tree_of_paths([[0], [1], [0, 0], [0, 1], [0, 2]]))
    assert places[1][0] == places[4][0] == 1.0
    assert places[0][0] == (places[1][0] + places[2][0]) / 2


def test_probabilities_are_those_of_paths() -> None:
    tree = tree_of_paths([[0], [1], [0, 1], [0, 1, 0]])
    assert node_probabilities(tree, RATES) == pytest.approx([1, 0.45, 0.15, 0.45 * 0.12, 0.45 * 0.12 * 0.35])
    assert sum(node_probabilities(tree, RATES)) == pytest.approx(expected_tokens(tree, RATES))


@pytest.mark.parametrize("acceptance", [None, RATES])
def test_a_picture_is_written(tmp_path: Path, acceptance: list[list[float]] | None) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "tree.png"
    draw_tree(best_tree(RATES, 9, 3), picture, title="pair", acceptance=acceptance)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_name_that_is_no_picture_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(InvalidArgument, match=r"--tree is .*expected a name that ends with .png"):
        require_drawing(tmp_path / "tree.txt")


RECIPE = """
name: pair
target: {source: {random: {architecture: llama, sizes: {vocab_size: 272}, seed: 0}}}
capacity: 256
draft: {kind: eagle3, source: ./draft, %s}
check: {prompts: [abc]}
"""


@pytest.mark.parametrize(
    ("stated", "nodes", "rated"),
    [
        ("tree: {nodes: 4, depth: 2, acceptance: [[0.5, 0.2], [0.4, 0.1]]}", 4, True),
        ("tree: {paths: [[0], [1], [0, 0]]}", 3, False),
    ],
)
def test_the_tree_of_a_recipe_is_drawn(tmp_path: Path, stated: str, nodes: int, rated: bool) -> None:
    pytest.importorskip("matplotlib")
    recipe, picture = tmp_path / "pair.yaml", tmp_path / "tree.png"
    recipe.write_text(RECIPE % stated)
    found = drawn_tree(recipe)
    assert (found.title, len(found.tree.parents), found.acceptance is not None) == ("pair", nodes, rated)
    result = CliRunner().invoke(main, ["inspect", str(recipe), "--tree", str(picture)])
    assert result.exit_code == 0, result.stderr
    assert result.stdout.strip() == str(picture) and picture.read_bytes().startswith(b"\x89PNG")


def test_a_tree_without_one_shape_is_refused(tmp_path: Path) -> None:
    recipe = tmp_path / "pair.yaml"
    recipe.write_text(RECIPE % "dynamic_tree: {nodes: 9, depth: 3, branch: 3}")
    with pytest.raises(InvalidArgument, match="grown every round"):
        drawn_tree(recipe)


def test_what_has_no_tree_is_refused(tiny_bundle: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for source in (tiny_bundle, RECIPES / "tiny-random.yaml"):
        result = CliRunner().invoke(main, ["inspect", str(source), "--tree", str(tmp_path / "tree.png")])
        assert result.exit_code == 1 and "kind model without a tree is a chain" in result.stderr
    assert not (tmp_path / "tree.png").exists()


def test_a_tree_is_drawn_or_a_bundle_described(tiny_bundle: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(
        main, ["inspect", str(tiny_bundle), "--json", "--tree", str(tmp_path / "t.png")]
    )
    assert result.exit_code == 2 and "leave out --json" in result.stderr
