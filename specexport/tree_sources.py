"""Where a tree to be drawn comes from: a bundle's manifest, or a recipe."""

from dataclasses import dataclass
from pathlib import Path

from specexport.recipe import load_recipe
from specexport.recipe_trees import ComputedTree, SpelledTree
from specexport.trees import Rates, Tree
from specruntime.bundle import load_manifest
from specruntime.errors import InvalidArgument

_BUNDLED_RECIPE = "recipe.yaml"


@dataclass(frozen=True, slots=True)
class DrawnTree:
    tree: Tree
    title: str
    acceptance: Rates | None  # None where nobody measured it


def drawn_tree(path: Path) -> DrawnTree:
    """The tree of a bundle, or of a recipe where `path` is a file.

    Raises `InvalidArgument` where there is none or it has no fixed shape, and what reading either raises.
    """
    if path.is_file():
        recipe = load_recipe(path)
        stated = _stated_tree(recipe.draft)
        if stated is None:
            raise _no_tree(path, recipe.draft.kind, getattr(recipe.draft, "dynamic_tree", None))
        return DrawnTree(stated.shape, recipe.name, _rates(stated))
    manifest = load_manifest(path)
    draft = manifest.draft
    tree = getattr(draft, "tree", None)
    if tree is None:
        raise _no_tree(path, draft.kind, getattr(draft, "dynamic", None))
    bundled = path / _BUNDLED_RECIPE
    stated = _stated_tree(load_recipe(bundled).draft) if bundled.is_file() else None
    return DrawnTree(Tree(tree.parents, tree.ranks), manifest.name, _rates(stated))


def _stated_tree(draft: object) -> SpelledTree | ComputedTree | None:
    return getattr(draft, "tree", None)


def _rates(stated: SpelledTree | ComputedTree | None) -> Rates | None:
    return stated.acceptance if isinstance(stated, ComputedTree) else None


def _no_tree(path: Path, kind: str, grown: object) -> InvalidArgument:
    if grown is not None:
        return InvalidArgument(f"{path}: its tree is grown anew each round, so there is no one shape to draw")
    return InvalidArgument(
        f"{path}: a draft of kind {kind} without a tree is a chain, there is nothing to draw; expected `draft.tree`"
    )
