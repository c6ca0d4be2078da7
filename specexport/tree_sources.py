"""Where a tree to be drawn comes from: a bundle's manifest, or a recipe."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specexport.recipe import load_recipe
from specexport.recipe_yaml import read_yaml
from specexport.trees import Rates, Tree, best_tree, tree_of_paths
from specruntime.bundle import load_manifest
from specruntime.errors import InvalidArgument
from specruntime.manifest import DraftSpec, EagleDraft, MedusaDraft

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
        stated = _stated_tree(path)
        if stated is None:
            raise InvalidArgument(f"{path}: {_why_none(recipe.draft.kind, _document(path))}")
        return DrawnTree(_tree_of(stated), recipe.name, stated.get("acceptance"))
    manifest = load_manifest(path)
    tree = _manifest_tree(manifest.draft)
    if tree is None:
        raise InvalidArgument(f"{path}: {_why_none(manifest.draft.kind, manifest.model_dump(mode='json'))}")
    bundled = path / _BUNDLED_RECIPE
    stated = _stated_tree(bundled) if bundled.is_file() else None
    return DrawnTree(tree, manifest.name, stated.get("acceptance") if stated else None)


def _manifest_tree(draft: DraftSpec) -> Tree | None:
    spec = draft.tree if isinstance(draft, EagleDraft | MedusaDraft) else None
    return None if spec is None else Tree(spec.parents, spec.ranks)


def _stated_tree(path: Path) -> dict[str, Any] | None:
    tree = _document(path).get("draft", {}).get("tree")
    return tree if isinstance(tree, dict) else None


def _document(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(read_yaml(path))
    return found


def _tree_of(stated: dict[str, Any]) -> Tree:
    if "paths" in stated:
        return tree_of_paths(stated["paths"])
    return best_tree(stated["acceptance"], stated["nodes"], stated["depth"])


def _why_none(kind: str, document: dict[str, Any]) -> str:
    draft = document.get("draft", {})
    if draft.get("dynamic") or draft.get("dynamic_tree"):
        return "its tree is grown anew each round, so there is no one shape to draw"
    return (
        f"a draft of kind {kind} without a tree is a chain, there is nothing to draw; expected `draft.tree`"
    )
