"""Every kind of draft in a recipe: trees in each form, lengths, widths, and one line for each mistake."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from specexport.draft_kinds import EagleRecipe, LayerSkipRecipe, MedusaRecipe
from specexport.errors import RecipeError
from specexport.recipe.schema import Recipe, load_recipe
from specexport.trees import best_tree, tree_of_paths

BASE: dict[str, Any] = {
    "name": "small",
    "target": {"source": {"random": {"architecture": "llama"}}},
    "capacity": 256,
    "check": {"prompts": ["hello"]},
}
RANDOM = {"random": {"seed": 1}}
EAGLE3: dict[str, Any] = {"kind": "eagle3", "source": RANDOM}
MEDUSA: dict[str, Any] = {"kind": "medusa", "source": RANDOM}
SKIP: dict[str, Any] = {"kind": "layer_skip"}
PATHS = [[0], [1], [0, 0], [0, 1], [0, 0, 0]]
RATES = [[0.5, 0.2, 0.1], [0.4, 0.2], [0.3]]


def _recipe(draft: dict[str, Any], **keys: object) -> Recipe:
    return Recipe.model_validate({**BASE, "draft": draft, **keys})


def test_trees_are_those_of_the_tree_functions() -> None:
    spelled = _recipe({**EAGLE3, "tree": {"paths": PATHS}}).draft
    computed = _recipe({**MEDUSA, "tree": {"nodes": 6, "depth": 3, "acceptance": RATES}}).draft
    assert isinstance(spelled, EagleRecipe) and isinstance(computed, MedusaRecipe)
    assert spelled.shape == tree_of_paths(PATHS)
    assert computed.shape == best_tree(RATES, 6, 3)
    assert (spelled.nodes, spelled.depth) == (5, 3)
    assert (computed.nodes, computed.depth) == (6, max(best_tree(RATES, 6, 3).depths))


def test_an_eagle_draft_is_a_chain_of_four_unless_a_tree_is_named() -> None:
    chain = _recipe(EAGLE3).draft
    tree = _recipe({**EAGLE3, "tree": {"paths": PATHS}}).draft
    dynamic = _recipe({**EAGLE3, "dynamic_tree": {"nodes": 7, "depth": 3, "branch": 3}}).draft
    assert (
        isinstance(chain, EagleRecipe) and isinstance(tree, EagleRecipe) and isinstance(dynamic, EagleRecipe)
    )
    assert (chain.k, chain.nodes, chain.depth, chain.shape) == (4, 4, 4, None)
    assert (tree.k, tree.nodes, tree.depth) == (None, 5, 3)
    assert (dynamic.k, dynamic.nodes, dynamic.depth, dynamic.shape) == (None, 7, 3, None)


def test_an_early_exit_is_the_first_layers() -> None:
    exit_after, layers = (
        _recipe({**SKIP, "exit_after": 3}).draft,
        _recipe({**SKIP, "layers": [0, 2, 5]}).draft,
    )
    assert isinstance(exit_after, LayerSkipRecipe) and isinstance(layers, LayerSkipRecipe)
    assert exit_after.kept_layers == (0, 1, 2)
    assert layers.kept_layers == (0, 2, 5)


@pytest.mark.parametrize(
    ("draft", "widths"),
    [
        ({**EAGLE3, "k": 5}, (6,)),
        ({**EAGLE3, "tree": {"paths": PATHS}}, (6,)),
        ({**EAGLE3, "dynamic_tree": {"nodes": 7, "depth": 3, "branch": 3}}, (8,)),
        ({**MEDUSA, "k": 3}, (4,)),
        ({**SKIP, "exit_after": 2, "k": 2}, (3,)),
        ({**EAGLE3, "k": 5, "adaptive": True}, (2, 3, 5, 6)),
        ({**EAGLE3, "k": 4, "adaptive": True, "lookup": {"k": 11}}, (2, 3, 5, 9, 12)),
        ({**EAGLE3, "k": 4, "adaptive": True, "lookup": {"k": 2}}, (2, 3, 5)),
    ],
)
def test_the_widest_window_holds_all_that_is_drafted(draft: dict[str, Any], widths: tuple[int, ...]) -> None:
    assert _recipe(draft).verify_widths == widths
    assert _recipe(draft, verify_widths=widths[-1:]).verify_widths == widths[-1:]


def test_a_resolved_recipe_of_every_kind_reads_back_equal(tmp_path: Path) -> None:
    drafts = [
        {**EAGLE3, "k": 3, "stop_below": 0.2},
        {**EAGLE3, "tree": {"paths": PATHS}},
        {**EAGLE3, "dynamic_tree": {"nodes": 7, "depth": 3, "branch": 3}},
        {
            **MEDUSA,
            "tree": {"nodes": 6, "depth": 3, "acceptance": RATES},
            "adaptive": True,
            "lookup": {"k": 4},
        },
        {**MEDUSA, "k": 2},
        {**SKIP, "layers": [0, 2]},
        {"kind": "eagle", "source": RANDOM},
    ]
    path = tmp_path / "recipe.yaml"
    for draft in drafts:
        recipe = _recipe(draft)
        path.write_text(yaml.safe_dump(recipe.model_dump(mode="json")))
        assert load_recipe(path) == recipe


def test_a_drafts_directory_is_taken_from_the_recipes(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    for draft in ({**EAGLE3, "source": "./drafts/it"}, {**MEDUSA, "source": "./drafts/it", "k": 2}):
        path.write_text(yaml.safe_dump({**BASE, "draft": draft}))
        found = load_recipe(path).draft
        assert isinstance(found, (EagleRecipe, MedusaRecipe))
        assert found.source == str(tmp_path / "drafts" / "it")


MISTAKES: list[tuple[dict[str, Any], str, str]] = [
    ({**EAGLE3, "k": 3, "tree": {"paths": PATHS}}, "draft.tree: found together with k, expected one of", ""),
    (
        {**EAGLE3, "tree": {"paths": PATHS}, "dynamic_tree": {"nodes": 7, "depth": 3, "branch": 3}},
        "draft.dynamic_tree: found together with tree",
        "",
    ),
    ({**EAGLE3, "tree": {"paths": PATHS}, "stop_below": 0.5}, "draft.stop_below: found 0.5 with tree,", "chain"),
    (
        {**EAGLE3, "dynamic_tree": {"nodes": 7, "depth": 3, "branch": 3}, "stop_below": 0.5},
        "draft.stop_below: found 0.5 with dynamic_tree,",
        "chain",
    ),
    ({**MEDUSA, "k": 2, "stop_below": 0.5}, "draft.stop_below: unknown key", ""),
    ({**EAGLE3, "stop_below": 1.0}, "draft.stop_below: found 1.0, expected less than 1", ""),
    ({**EAGLE3, "kind": "eagle4"}, "draft.kind: found 'eagle4', allowed: none, ngram", "did you mean 'eagle"),
    ({"kind": "eagle3"}, "draft.source: missing", ""),
    ({**EAGLE3, "source": {"randm": {}}}, "draft.source.randm: unknown key", "did you mean 'random'?"),
    ({**EAGLE3, "source": {"random": {"sed": 1}}}, "draft.source.random.sed: unknown key", "did you mean 'seed'?"),
    ({**EAGLE3, "source": "it"}, "draft.source: found 'it', expected ./directory", "write ./it"),
    (
        {"kind": "eagle", "source": {"random": {"draft_vocab_size": 9}}},
        "draft.source.random.draft_vocab_size: found with kind eagle",
        "eagle3",
    ),
    ({**EAGLE3, "tree": {"paths": [[0], [1, 0]]}}, "draft.tree.paths: the tree has [1, 0] but not [1]", ""),
    ({**EAGLE3, "tree": {"paths": [[0], [0]]}}, "draft.tree.paths: the tree names [0] twice", ""),
    ({**EAGLE3, "tree": {"paths": [[99]]}}, "draft.tree.paths: found candidate 99, expected 0..63", ""),
    ({**EAGLE3, "tree": {"pahts": [[0]]}}, "draft.tree.pahts: unknown key, allowed: paths", "did you mean 'paths'?"),
    ({**EAGLE3, "tree": {"nodes": 3, "depth": 2, "acceptance": [[0.9, 0.2], [0.1]]}}, "draft.tree.acceptance:", "sum"),
    ({**EAGLE3, "tree": {"nodes": 3, "depth": 4, "acceptance": [[0.5]]}}, "draft.tree.acceptance:", "4 levels"),
    (
        {**EAGLE3, "dynamic_tree": {"nodes": 2, "depth": 3, "branch": 3}},
        "draft.dynamic_tree.nodes: found 2, expected at least depth = 3",
        "",
    ),
    (
        {**EAGLE3, "dynamic_tree": {"nodes": 9, "depth": 2, "branch": 2}},
        "draft.dynamic_tree.nodes: found 9, expected at most 6",
        "",
    ),
    (MEDUSA, "draft.tree: found neither k nor tree, expected one of them", ""),
    ({**MEDUSA, "k": 2, "tree": {"paths": PATHS}}, "draft.tree: found both k and tree", ""),
    (SKIP, "draft.exit_after: found neither exit_after nor layers", ""),
    ({**SKIP, "exit_after": 2, "layers": [0]}, "draft.exit_after: found both exit_after and layers", ""),
    ({**SKIP, "layers": [1, 0]}, "draft.layers: found [1, 0], expected ascending", ""),
    ({**SKIP, "exit_after": 2, "lookup": {"k": 3}}, "draft.lookup: found without adaptive: true", ""),
    (
        {"kind": "model", "source": {"noise_of_target": {"scale": 0.1}}, "fused": True, "stop_below": 0.5},
        "draft.stop_below: found 0.5 with fused: true",
        "",
    ),
    ({"kind": "none", "adaptive": True}, "draft.adaptive: unknown key, allowed: kind", ""),
]  # fmt: skip


@pytest.mark.parametrize(("draft", "start", "rest"), MISTAKES)
def test_a_mistake_is_one_line_naming_key_finding_and_cure(
    tmp_path: Path, draft: dict[str, Any], start: str, rest: str
) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump({**BASE, "draft": draft}))
    with pytest.raises(RecipeError) as caught:
        load_recipe(path)
    lines = [line.removeprefix(f"{path}: ") for line in caught.value.lines]
    assert len(lines) == 1, lines
    assert lines[0].startswith(start) and rest in lines[0], lines[0]


@pytest.mark.parametrize(
    ("draft", "key"),
    [
        ({**EAGLE3, "tree": {"paths": PATHS}}, "the nodes of draft.tree + 1 = 6"),
        (
            {**EAGLE3, "dynamic_tree": {"nodes": 5, "depth": 3, "branch": 3}},
            "draft.dynamic_tree.nodes + 1 = 6",
        ),
        ({**EAGLE3, "k": 5}, "draft.k + 1 = 6"),
        ({**EAGLE3, "adaptive": True, "lookup": {"k": 5}}, "draft.lookup.k + 1 = 6"),
    ],
)
def test_a_window_too_narrow_names_the_key_that_decides_it(draft: dict[str, Any], key: str) -> None:
    with pytest.raises(ValueError, match="verify_widths: found") as caught:
        _recipe(draft, verify_widths=[2, 4])
    assert key in str(caught.value)
