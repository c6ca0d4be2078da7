"""What a tuned bundle means for a recipe: the keys of `draft`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specexport.errors import RecipeError
from specexport.trees import Rates
from specexport.tune.recipe_edit import stated_draft, write_draft
from specexport.tune.run import PAYS, TuneReport

_BUNDLED_RECIPE = "recipe.yaml"
_SHAPES = ("k", "tree", "dynamic_tree")
_DECIMALS = 4


def write_choice(report: TuneReport, recipe: Path) -> dict[str, Any]:
    """Writes the best kind, length or tree into the recipe file; the draft that it has now.

    A recipe of another kind gets the draft of the best bundle's own recipe, sources included. Raises `RecipeError`.
    """
    draft = chosen_draft(report, stated_draft(recipe))
    write_draft(recipe, draft)
    return draft


def chosen_draft(report: TuneReport, stated: Mapping[str, Any]) -> dict[str, Any]:
    """`stated` with what pays best on the tuned prompts; kind `none` where nothing does.

    Layers that were found for a `layer_skip` draft count by their prediction: no bundle has them yet.
    """
    best = report.best
    if best.layers is not None and best.layers.speedup >= max(PAYS, best.best.speedup):
        base = dict(stated) if stated["kind"] == best.kind else _bundled_draft(best.path)
        rest = {key: value for key, value in base.items() if key != "exit_after"}
        return {**rest, "k": best.layers.k, "layers": list(best.layers.layers)}
    if not report.pays:
        return {"kind": "none"}
    base = dict(stated) if stated["kind"] == best.kind else _bundled_draft(best.path)
    if best.tree is not None and best.tree.tree is not None:
        shape = best.tree.tree
        rest = {key: value for key, value in base.items() if key not in _SHAPES}
        tree = {
            "nodes": len(shape.parents),
            "depth": max(shape.depths),
            "acceptance": rounded(best.acceptance),
        }
        return {**rest, "tree": tree}
    size = best.best_fixed.size
    return {**base, "k": size} if best.chain and size > 0 else base


def rounded(rates: Rates) -> list[list[float]]:
    """Rates as a recipe states them: rounded down, so that no depth passes 1."""
    scale = 10**_DECIMALS
    return [[int(rate * scale) / scale for rate in ranks] for ranks in rates]


def _bundled_draft(bundle: Path) -> dict[str, Any]:
    path = bundle / _BUNDLED_RECIPE
    if not path.is_file():
        raise RecipeError(f"{bundle} has no {_BUNDLED_RECIPE} to take its draft from: build the bundle again")
    return {key: value for key, value in stated_draft(path).items() if value is not None}
