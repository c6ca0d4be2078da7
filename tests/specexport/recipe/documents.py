"""A small recipe, changed and written as tests need it."""

import copy
from pathlib import Path
from typing import Any

import yaml

MINIMAL: dict[str, Any] = {
    "name": "small",
    "target": {"source": {"random": {"architecture": "llama"}}},
    "capacity": 256,
    "draft": {"kind": "ngram"},
    "check": {"prompts": ["hello"]},
}


def write(directory: Path, document: object) -> Path:
    path = directory / "recipe.yaml"
    path.write_text(document if isinstance(document, str) else yaml.safe_dump(document))
    return path


def changed(path: str, value: object) -> dict[str, Any]:
    """MINIMAL with `value` at a dotted key path."""
    document = copy.deepcopy(MINIMAL)
    place = document
    *parents, last = path.split(".")
    for key in parents:
        place = place.setdefault(key, {})
    place[last] = value
    return document
