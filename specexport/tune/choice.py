"""What a tuned bundle means for a recipe: the keys of `draft`."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from specexport.errors import RecipeError
from specexport.recipe.schema import load_recipe
from specexport.recipe.yaml import read_yaml
from specexport.trees import Rates
from specexport.tune.trials import ADAPTIVE
from specexport.tune.tuner import TuneReport

Draft = Mapping[str, Any]

_LONGEST_LINE = 1 << 20  # a value stays on its line


def stated_draft(path: Path) -> dict[str, Any]:
    """Return the recipe's `draft` as the file states it. Raises `RecipeError` for a file that is not a recipe."""
    load_recipe(path)
    found: dict[str, Any] = json.loads(read_yaml(path))["draft"]
    return found


def write_draft(path: Path, draft: Draft) -> None:
    """Replace what changes of `draft`; `verify_widths` goes where it no longer fits, as it follows from the draft.

    Raises `RecipeError` when the result is not a recipe (the file then stays unchanged), and `OSError`.
    """
    before = stated_draft(path)
    text = path.read_text(encoding="utf-8")
    changed = _replaced(text, before, draft)
    staged = path.with_name(f".{path.name}.tuned.yaml")
    try:
        for candidate in (changed, _without(changed, "verify_widths")):
            staged.write_text(candidate, encoding="utf-8")
            problem = _problem(staged, draft)
            if problem is None:
                staged.replace(path)
                return
    finally:
        staged.unlink(missing_ok=True)
    raise RecipeError(
        f"{path}: left as it was, the tuned draft {dict(draft)} does not fit into it: {problem}"
    )


def _problem(staged: Path, draft: Draft) -> str | None:
    """Return what is wrong with the staged file; None when it is a recipe with this draft."""
    try:
        found = stated_draft(staged)
    except RecipeError as error:
        return "; ".join(line.removeprefix(f"{staged}: ") for line in error.lines)
    return None if found == json.loads(json.dumps(draft)) else f"it reads back as {found}"


def _replaced(text: str, before: Draft, after: Draft) -> str:
    """Return the text with the draft's changed keys: line by line in a block, the whole value of a draft on one
    line.
    """
    lines = text.splitlines(keepends=True)
    start, stop = _span(lines, "draft", indent="")
    block = lines[start:stop]
    inner = [line for line in block[1:] if line.strip() and not line.lstrip().startswith("#")]
    if block[0].split("#")[0].strip() != "draft:" or not inner or set(before) & {"<<"}:
        return "".join([*lines[:start], f"draft: {_flow(after)}\n", *lines[stop:]])
    indent = inner[0][: len(inner[0]) - len(inner[0].lstrip())]
    for key in before.keys() - after.keys():
        first, last = _span(block, key, indent)
        del block[first:last]
    for key, value in after.items():
        if key in before and before[key] == value:
            continue
        line = f"{indent}{key}: {_flow(value)}"
        if key in before:
            first, last = _span(block, key, indent)
            comment = _comment(block[first]) if last == first + 1 else ""
            block[first:last] = [f"{line}{comment}\n"]
        else:
            block.insert(_end(block), f"{line}\n")
    return "".join([*lines[:start], *block, *lines[stop:]])


def _span(lines: list[str], key: str, indent: str) -> tuple[int, int]:
    """Return the lines of a key at this indentation: its own, and those deeper than it."""
    start = next(
        number
        for number, line in enumerate(lines)
        if line.startswith((f"{indent}{key}:", f'{indent}"{key}":', f"{indent}'{key}':"))
    )
    stop = start + 1
    while stop < len(lines) and (not lines[stop].strip() or lines[stop].startswith(f"{indent} ")):
        stop += 1
    while not lines[stop - 1].strip():
        stop -= 1  # blank lines belong to what follows
    return start, stop


def _end(block: list[str]) -> int:
    """Where a line goes that ends the block."""
    return max(number for number, line in enumerate(block) if line.strip()) + 1


def _comment(line: str) -> str:
    before, mark, after = line.rstrip("\n").partition(" #")
    return f"{before[len(before.rstrip()) :]} #{after}" if mark else ""


def _without(text: str, key: str) -> str:
    lines = text.splitlines(keepends=True)
    if any(line.startswith(f"{key}:") for line in lines):
        start, stop = _span(lines, key, indent="")
        del lines[start:stop]
    return "".join(lines)


def _flow(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=_LONGEST_LINE, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...").strip()


_BUNDLED_RECIPE = "recipe.yaml"
_SHAPES = ("k", "tree", "dynamic_tree")
_DECIMALS = 4


def require_same_target(bundles: Iterable[Path], recipe: Path) -> None:
    """Raise `RecipeError` where a bundle is of another target than the recipe: its draft would not fit there.

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
    """Write the best kind, length or tree into the recipe file; the draft that it has now.

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
    """Return what drafts by a recipe, local paths in full."""
    draft = load_recipe(recipe).draft
    return draft.kind, getattr(draft, "source", None)


def _bundled_draft(bundle: Path) -> dict[str, Any]:
    path = bundle / _BUNDLED_RECIPE
    if not path.is_file():
        raise RecipeError(f"{bundle} has no {_BUNDLED_RECIPE} to take its draft from: build the bundle again")
    return {key: value for key, value in stated_draft(path).items() if value is not None}
