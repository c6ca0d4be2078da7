"""Turns pydantic's findings about a closed model into one line: the key, what was found, what is allowed.

Knows the rules of models that forbid unknown keys, and nothing of what the models are about.
"""

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError

Location = tuple[int | str, ...]


def describe_problem(error: ValidationError, model: type[BaseModel]) -> str:
    """One line for the problem worth mending first: an unknown key before all others, since it explains them."""
    found = error.errors(include_url=False, include_context=False)
    detail = next((d for d in found if d["type"] == "extra_forbidden"), found[0])
    where = ".".join(str(part) for part in detail["loc"]) or "the whole file"
    where = where if where.isprintable() and len(where) <= 200 else shorten(where, 200)
    if detail["type"] == "extra_forbidden":
        return f"unknown key {where!r}; {nearest(str(detail['loc'][-1]), allowed_keys(model, detail['loc']))}"
    if detail["type"] == "missing":
        return f"key {where!r} is missing"
    return f"{where}: found {shorten(detail['input'])}, expected otherwise: {detail['msg']}"


def nearest(found: str, allowed: list[str]) -> str:
    """`did you mean 'x'? allowed: ...` for a word that is not in the list."""
    close = get_close_matches(found, allowed, n=1, cutoff=0.6)
    guess = f"did you mean {close[0]!r}? " if close else ""
    return f"{guess}allowed: {', '.join(sorted(allowed))}"


def allowed_keys(model: type[BaseModel], location: Location) -> list[str]:
    """The keys of the model that holds the last part of `location`, a path as pydantic reports it."""
    candidates = [model]
    for part in location[:-1]:
        annotations = [c.model_fields[part].annotation for c in candidates if part in c.model_fields]
        if annotations:
            candidates = [m for annotation in annotations for m in _models_in(annotation)]
        else:  # an index, a mapping's key, or the tag of a union's member
            candidates = [c for c in candidates if part in _tags(c)] or candidates
    return sorted({key for candidate in candidates for key in candidate.model_fields})


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)


def _tags(model: type[BaseModel]) -> set[object]:
    literals = [f.annotation for f in model.model_fields.values() if get_origin(f.annotation) is Literal]
    return {value for literal in literals for value in get_args(literal)}


def shorten(found: object, limit: int = 60) -> str:
    """`found` as Python writes it, cut to `limit` characters."""
    try:
        text = repr(found)
    except RecursionError:
        text = f"a deeply nested {type(found).__name__}"
    return text if len(text) <= limit else text[: limit - 3] + "..."
