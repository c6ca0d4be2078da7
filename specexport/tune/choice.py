"""What a tuned bundle means for a recipe: the keys of `draft`."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from specexport.errors import RecipeError
from specexport.recipe import load_recipe
from specexport.trees import Rates
from specexport.tune.recipe_edit import stated_draft, write_draft
from specexport.tune.run import TuneReport
from specexport.tune.trials import ADAPTIVE

_BUNDLED_RECIPE = "recipe.yaml"
_SHAPES = ("k", "tree", "dynamic_tree")
_DECIMALS = 4


def require_same_target(bundles: Iterable[Path], recipe: Path) -> None:
    """Raises `RecipeError` where a bundle is of another target than the recipe: its draft would not fit there.

    A bundle without a recipe of its own is not compared.
    """
    expected = load_recipe(recipe).target.source
    for bundle in bundles:
        path = bundle / _BUNDLED_RECIPE
        if path.is_file() and (found := load_recipe(path).target.source) != expected:
            raise RecipeError(
                f"--write: found {recipe} with the target {expected}, expected {found}, that of {bundle}; write the "
                "draft into a recipe of the target that it is tuned for"
            )


def write_choice(report: TuneReport, recipe: Path) -> dict[str, Any]:
    """Writes the best kind, length or tree into the recipe file; the draft that it has now.

    A recipe of another draft, by kind or source, gets that of the best bundle's own recipe. Raises `RecipeError`, also
    for a recipe of another target.
    """
    require_same_target([report.best.path], recipe)
    stated = stated_draft(recipe)
    bundled = report.best.path / _BUNDLED_RECIPE
    if bundled.is_file() and _source(bundled) != _source(recipe):
        stated = _bundled_draft(report.best.path)
    draft = chosen_draft(report, stated)
    write_draft(recipe, draft)
    return draft


def chosen_draft(report: TuneReport, stated: Mapping[str, Any]) -> dict[str, Any]:
    """`stated` with what pays best on the tuned prompts; kind `none` where nothing does.

    Layers that were found for a `layer_skip` draft count by their prediction: no bundle has them yet. A computed tree
    too, where it promises more than the bundle's own shape.
    """
    best = report.best
    base = dict(stated) if stated["kind"] == best.kind else None
    if (layers := report.promised_layers) is not None:
        base = base or _bundled_draft(best.path)
        rest = {key: value for key, value in base.items() if key != "exit_after"}
        return {**rest, "k": layers.k, "layers": list(layers.layers)}
    if not report.pays:
        return {"kind": "none"}
    base = base or _bundled_draft(best.path)
    if best.best.size == ADAPTIVE:
        return _as_built(best.path, base, (*_SHAPES, "adaptive", "lookup"))
    rest = {key: value for key, value in base.items() if key not in _SHAPES}
    if best.chain:
        return {**rest, "k": best.best_fixed.size}
    promised = report.promised_tree
    if promised is None or (shape := promised.tree) is None:
        return _as_built(best.path, base, _SHAPES)
    tree = {"nodes": len(shape.parents), "depth": max(shape.depths), "acceptance": rounded(best.acceptance)}
    return {**rest, "tree": tree}


def rounded(rates: Rates) -> list[list[float]]:
    """Rates as a recipe states them: rounded down, so that no depth passes 1."""
    scale = 10**_DECIMALS
    return [[int(rate * scale) / scale for rate in ranks] for ranks in rates]


def _as_built(bundle: Path, draft: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    """`draft`, with what the bundle's own recipe says under these keys; as it is where the bundle has no recipe."""
    if not (bundle / _BUNDLED_RECIPE).is_file():
        return dict(draft)
    found = _bundled_draft(bundle)
    kept = {key: value for key, value in draft.items() if key not in keys}
    return kept | {key: found[key] for key in keys if key in found}


def _source(recipe: Path) -> tuple[str, object]:
    """What drafts by a recipe, local paths in full."""
    draft = load_recipe(recipe).draft
    return draft.kind, getattr(draft, "source", None)


def _bundled_draft(bundle: Path) -> dict[str, Any]:
    path = bundle / _BUNDLED_RECIPE
    if not path.is_file():
        raise RecipeError(f"{bundle} has no {_BUNDLED_RECIPE} to take its draft from: build the bundle again")
    return {key: value for key, value in stated_draft(path).items() if value is not None}
