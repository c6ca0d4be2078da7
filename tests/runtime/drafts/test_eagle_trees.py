"""An EAGLE draft's trees: the static ones node by node, the dynamic ones as EAGLE-2 grows them."""

import numpy as np
import pytest

from specruntime.drafts.eagle import DynamicTree
from specruntime.errors import BundleInvalid
from specruntime.manifest.schema import TreeSpec
from tests.runtime.drafts.eagle_drafting import DYNAMIC, TREES, Drafting, found_nodes, walk
from tests.runtime.scripted_draft import best_of, eagle_spec, pair_spec
from tests.runtime.scripted_engine import clean_logits, target_spec


def expected_nodes(drafting: Drafting, tree: TreeSpec) -> dict[tuple[int, ...], int]:
    """The token of every node of a static tree by its path of ranks, from the language itself."""
    tokens: dict[tuple[int, ...], int] = {}
    paths: list[tuple[int, ...]] = [()]
    for parent, rank in zip(tree.parents, tree.ranks, strict=True):
        path = (*paths[parent], rank)
        before = [tokens[path[:end]] for end in range(1, len(path))]
        tokens[path] = best_of(clean_logits(drafting.language, [*drafting.tokens, *before]))[0][rank]
        paths.append(path)
    return tokens


@pytest.mark.parametrize("name", TREES)
def test_every_node_of_a_static_tree_is_its_parents_candidate(name: str) -> None:
    tree = TREES[name]
    drafting = Drafting(tree=tree, capacity=512)
    rounds = np.random.default_rng(3)
    for _ in range(25):
        drafting.drafted()
        assert found_nodes(drafting.last) == expected_nodes(drafting, tree)
        assert drafting.context.runs[1:] == [f"level_{depth}" for depth in range(1, tree.depth)]
        path, emitted = walk(drafting, drafting.last)
        assert len(path) == tree.depth or name not in ("fan", "line", "comb")
        drafting.accept(*emitted[: rounds.integers(1, len(emitted) + 1)], 3)


@pytest.mark.parametrize("name", TREES)
def test_a_perfect_tree_accepts_its_whole_depth_for_fifty_rounds(name: str) -> None:
    tree = TREES[name]
    drafting = Drafting(tree=tree, capacity=512)
    for _ in range(50):
        drafting.drafted()
        path, emitted = walk(drafting, drafting.last)
        assert len(path) == tree.depth and (np.diff([0, *path]) > 0).all()
        drafting.accept(*emitted)


@pytest.mark.parametrize("nodes", [1, 4, 16, 64])
@pytest.mark.parametrize("branch", [1, 3])
def test_a_dynamic_tree_is_the_best_of_the_candidates_it_asked_for(nodes: int, branch: int) -> None:
    depth = 4
    drafting = Drafting(dynamic=DynamicTree(nodes=nodes, branch=branch), k=depth, capacity=512)
    for _ in range(12):
        drafting.drafted()
        found = found_nodes(drafting.last)
        assert found == published_tree(drafting, nodes, branch, depth)
        path, emitted = walk(drafting, drafting.last)
        assert path or nodes == 0
        drafting.accept(*emitted)


def published_tree(drafting: Drafting, nodes: int, branch: int, depth: int) -> dict[tuple[int, ...], int]:
    """EAGLE-2 by the book: expand the best `branch` of each level, rank every candidate, keep the best."""
    level: list[tuple[tuple[int, ...], list[int], float]] = [((), [], 0.0)]
    everything: list[tuple[tuple[int, ...], list[int], float]] = []
    for _ in range(depth):
        found = []
        for path, tokens, worth in level:
            ids, logprobs = best_of(clean_logits(drafting.language, [*drafting.tokens, *tokens]))
            for rank, (token, logprob) in enumerate(zip(ids, logprobs, strict=True)):
                found.append(((*path, rank), [*tokens, token], worth + float(np.float32(logprob))))
        everything += found
        level = sorted(found, key=lambda node: -node[2])[:branch]
    return {path: tokens[-1] for path, tokens, _ in sorted(everything, key=lambda node: -node[2])[:nodes]}


def test_a_level_that_cannot_lead_to_a_node_is_not_asked_for() -> None:
    drafting = Drafting(dynamic=DynamicTree(nodes=2, branch=3), k=4)
    drafting.drafted()
    assert len(drafting.context.runs) < 5, "the best two nodes are found before the last level"
    wide = Drafting(dynamic=DynamicTree(nodes=64, branch=3), k=4)
    wide.drafted()
    assert wide.context.runs == ["extend_5", "level_1", "level_2", "level_3"]


@pytest.mark.parametrize("shape", [*TREES, "dynamic", "chain"])
@pytest.mark.parametrize("depth", range(4))
@pytest.mark.parametrize("nodes", [0, 1, 2, 5])
def test_a_proposal_keeps_within_its_room_and_spends_no_level_too_many(
    shape: str, depth: int, nodes: int
) -> None:
    drafting = (
        Drafting()
        if shape == "chain"
        else Drafting(dynamic=DYNAMIC)
        if shape == "dynamic"
        else Drafting(tree=TREES[shape])
    )
    drafts = drafting.drafted(depth, nodes)
    if depth == 0 or nodes == 0:
        assert not drafts and not drafting.context.runs
        return
    assert 1 <= len(drafts) <= nodes
    levels = len(drafts)
    if shape != "chain":
        levels = max(len(path) for path in found_nodes(drafting.last))
    assert levels <= len(drafting.context.runs) <= depth
    assert levels == len(drafting.context.runs) or shape == "dynamic"


def test_a_graph_that_cannot_grow_the_tree_is_refused() -> None:
    tree = TREES["comb"]
    for levels, message in (
        ([], "level 1 of the draft's tree needs a profile 'level_1' 1 wide with 1 rows, found none"),
        ([(1, 1)], "level 2 .* needs a profile 'level_2' 2 wide with 1 rows, found none"),
        ([(1, 1), (1, 1)], "level 2 .* 'level_2' 2 wide with 1 rows, found one 1 wide with 1 rows"),
    ):
        with pytest.raises(BundleInvalid, match=message):
            eagle_spec(3, pair_spec(levels), tree=tree).check(target_spec())
    graph = pair_spec([(3, 3), (5, 3)])
    with pytest.raises(BundleInvalid, match=r"level 2 .* 'level_2' 6 wide with 3 rows"):
        eagle_spec(3, graph, dynamic=DYNAMIC).check(target_spec())
    inputs = tuple(tensor for tensor in graph.inputs if tensor.name != "window_mask")
    graph = pair_spec([(3, 3), (6, 3)]).model_copy(update={"inputs": inputs})
    with pytest.raises(BundleInvalid, match=r"draft\.graph has no input 'window_mask'"):
        eagle_spec(3, graph, dynamic=DYNAMIC).check(target_spec())
