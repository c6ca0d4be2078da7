"""The windows of a draft's graph are enough for what the runtime asks, and no more."""

import pytest

from specexport.draft_kinds.eagle import eagle_profiles
from specexport.draft_kinds.medusa import MedusaRecipe
from specexport.recipe.trees import candidate_count
from specexport.trees import tree_of_paths
from specruntime.drafts.trees import static_tree
from specruntime.manifest.schema import Profile

OUTPUTS = ("topk_ids", "topk_logprobs", "next_hidden", "logits", "present_key.0", "present_value.0")
PREFILL = (Profile(name="prefill_16", width=16, rows=1),)
TREES = (
    [[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0], [0, 0, 0, 0]],
    [[0], [1]],
    [[0], [0, 0], [0, 0, 0]],
    [[1], [1, 2], [0], [0, 0], [0, 0, 1], [1, 2, 0], [1, 2, 1]],
)


@pytest.mark.parametrize("paths", TREES)
def test_a_level_holds_the_nodes_asked_so_far(paths: list[list[int]]) -> None:
    tree = tree_of_paths(paths)
    asked = [len(level.asked) for level in static_tree(tree.parents, tree.ranks).levels][1:]
    found = eagle_profiles(OUTPUTS, PREFILL, k=max(tree.depths), tree=tree, selective=False)
    levels = [(p.width, p.rows) for p in found if p.name.startswith("level_")]
    assert levels == [(sum(asked[: depth + 1]), rows) for depth, rows in enumerate(asked)]


def test_a_dynamic_tree_has_a_branch_more_at_each_level() -> None:
    found = eagle_profiles(OUTPUTS, PREFILL, k=4, branch=3, selective=False)
    assert [(p.name, p.width, p.rows) for p in found if p.name.startswith("level_")] == [
        ("level_1", 3, 3),
        ("level_2", 6, 3),
        ("level_3", 9, 3),
    ]


@pytest.mark.parametrize(("k", "widths"), [(1, [2]), (2, [2, 3]), (4, [2, 3, 5]), (6, [2, 3, 5, 7])])
def test_extending_by_a_round_fits_one_window(k: int, widths: list[int]) -> None:
    found = eagle_profiles(OUTPUTS, PREFILL, k=k, selective=False)
    assert [p.width for p in found if p.name.startswith("extend_")] == widths
    assert found[0] == Profile(name="step", width=1, rows=1)
    assert all(p.rows == 1 and p.outputs is None for p in found)


def test_only_the_twins_compute_logits() -> None:
    found = {p.name: p for p in eagle_profiles(OUTPUTS, PREFILL, k=2, branch=2, selective=True)}
    plain = [name for name in found if not name.endswith("_law")]
    assert plain == ["step", "extend_2", "extend_3", "level_1", "prefill_16"]
    assert {f"{name}_law" for name in plain[:-1]} == found.keys() - set(plain)
    for name in plain:
        assert found[name].outputs == tuple(output for output in OUTPUTS if output != "logits")
    for name in found.keys() - set(plain):
        assert found[name].outputs is None
        twin = found[name.removesuffix("_law")]
        assert (found[name].width, found[name].rows) == (twin.width, twin.rows)


def test_candidates_cover_the_tree_and_leave_some_to_measure() -> None:
    assert candidate_count(()) == 8
    assert candidate_count((0, 11)) == 12
    assert candidate_count((), 20) == 20
    heads = MedusaRecipe.model_validate({"kind": "medusa", "source": {"random": {}}, "k": 2})
    assert [(p.name, p.width, p.rows) for p in heads.windows(16, ())] == [("heads", 1, 1)]
