"""A draft's tree is sound, fits its graph's candidates and the target's windows; each way it does not is named."""

from pathlib import Path

import pytest

from specruntime.manifest.schema import TreeSpec
from tests.runtime.manifest.draft_documents import Case, eagle, medusa, require_refused, without


def test_depths_follow_the_parents() -> None:
    assert TreeSpec(parents=(0, 1, 2, 0, 4), ranks=(0, 0, 0, 1, 0)).depths == (1, 2, 3, 1, 2)


CONTRADICTORY: dict[str, Case] = {
    "a parent after its child": (
        eagle,
        lambda d: d["draft"]["tree"].update(parents=[0, 2, 1]),
        ["draft.tree: node 1, window row 2, has parent row 2, expected an earlier"],
    ),
    "more ranks than parents": (
        medusa,
        lambda d: d["draft"]["tree"].update(ranks=[0, 1, 0, 0]),
        ["draft.tree has 3 parents and 4 ranks"],
    ),
    "two children of one rank": (
        eagle,
        lambda d: d["draft"]["tree"].update(ranks=[0, 0, 0]),
        ["draft.tree: row 0 has two children of rank 0, expected each rank once"],
    ),
    "a rank beyond the candidates": (
        eagle,
        lambda d: d["draft"]["tree"].update(ranks=[0, 6, 0]),
        ["draft.tree: node 1 has rank 6, but the draft's graph names 6 candidates"],
    ),
    "a rank beyond the candidates of heads": (
        medusa,
        lambda d: d["draft"]["tree"].update(ranks=[0, 5, 0]),
        ["draft.tree: node 1 has rank 5, but the draft's graph names 5 candidates"],
    ),
    "a tree of levels without windows": (
        eagle,
        lambda d: d["draft"]["graph"]["profiles"].pop(),
        ["level 1 of the draft's tree needs a profile 'level_1' 1 wide with 1 rows, found none"],
    ),
    "a tree wider than the windows": (
        eagle,
        lambda d: d["draft"]["tree"].update(parents=[0, 0, 1, 1], ranks=[0, 1, 0, 1]),
        ["the number of nodes of draft.tree is 4", "judges 4 rows", "5 are needed"],
    ),
    "a dynamic tree wider than the windows": (
        lambda: eagle(tree=None, dynamic={"nodes": 9, "branch": 2}),
        lambda d: None,
        ["draft.dynamic.nodes is 9", "judges 4 rows", "10 are needed"],
    ),
    "a dynamic tree of fewer nodes than levels": (
        lambda: eagle(tree=None, k=3, dynamic={"nodes": 2, "branch": 2}),
        lambda d: None,
        ["draft.dynamic.nodes is 2, too few for a depth of 3"],
    ),
    "a branch beyond the candidates": (
        lambda: eagle(tree=None, dynamic={"nodes": 3, "branch": 7}),
        lambda d: None,
        ["draft.dynamic.branch is 7, but its graph names 6 candidates"],
    ),
    "k with a tree of another depth": (
        eagle,
        lambda d: d["draft"].update(k=3),
        ["draft.k is 3, but draft.tree is 2 deep"],
    ),
    "both kinds of tree": (
        eagle,
        lambda d: d["draft"].update(dynamic={"nodes": 3, "branch": 2}),
        ["both a tree and a dynamic tree"],
    ),
    "a confidence stop of a tree": (
        eagle,
        lambda d: d["draft"].update(stop_below=0.5),
        ["draft.stop_below is 0.5 with a tree"],
    ),
    "a tree for a target without a mask": (
        eagle,
        lambda d: without(d, "inputs", "window_mask"),
        ["draft has a tree, but the target has no input 'window_mask'"],
    ),
    "a dynamic tree for a target without positions": (
        lambda: eagle(tree=None, dynamic={"nodes": 3, "branch": 2}),
        lambda d: without(d, "inputs", "position_ids"),
        ["draft has a tree, but the target has no input 'position_ids'"],
    ),
    "a tree deeper than the heads": (
        medusa,
        lambda d: (
            d["draft"].update(heads=1),
            [output["shape"].__setitem__(2, 1) for output in d["draft"]["graph"]["outputs"]],
        ),
        ["draft.tree is 2 deep, but there are 1 heads"],
    ),
}


@pytest.mark.parametrize("name", CONTRADICTORY)
def test_a_tree_that_contradicts_draft_or_target_is_refused(tmp_path: Path, name: str) -> None:
    require_refused(tmp_path, CONTRADICTORY[name])
