"""Putting a tuned draft into a recipe file: the lines of `draft` change, every other line stays as it is.

Works on text, so that comments and order survive. What it writes is read back as a recipe before the file is touched.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from specexport.errors import RecipeError
from specexport.recipe import load_recipe
from specexport.recipe_yaml import read_yaml

Draft = Mapping[str, Any]

_LONGEST_LINE = 1 << 20  # a value stays on its line


def stated_draft(path: Path) -> dict[str, Any]:
    """The recipe's `draft` as the file states it. Raises `RecipeError` for a file that is no recipe."""
    load_recipe(path)
    found: dict[str, Any] = json.loads(read_yaml(path))["draft"]
    return found


def write_draft(path: Path, draft: Draft) -> None:
    """Replaces what changes of `draft`; `verify_widths` goes where it no longer fits, as it follows from the draft.

    Raises `RecipeError` when the result is no recipe, the file then being as it was, and `OSError`.
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
    """What is wrong with the staged file; None when it is a recipe with this draft."""
    try:
        found = stated_draft(staged)
    except RecipeError as error:
        return "; ".join(line.removeprefix(f"{staged}: ") for line in error.lines)
    return None if found == json.loads(json.dumps(draft)) else f"it reads back as {found}"


def _replaced(text: str, before: Draft, after: Draft) -> str:
    """The text with the draft's changed keys: line by line in a block, the whole value of a draft on one line."""
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
    """The lines of a key at this indentation: its own, and those deeper than it."""
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
