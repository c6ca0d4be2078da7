"""Turns what pydantic says about a recipe into one line per mistake.

A line names the key path, what was found, what is allowed and, where a name was misspelt, the nearest one.
"""

import json
import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

Models = tuple[type[BaseModel], ...]

_KEY = re.compile(r"[a-z_0-9.]+: ")


def nearest(name: str, allowed: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the closest allowed name, or nothing."""
    close = get_close_matches(name, [str(item) for item in allowed], n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


def explain(error: ValidationError, root: type[BaseModel]) -> Iterator[str]:
    """One line per mistake of a validation of `root`."""
    details = error.errors()
    for item in details:
        if not _follows_from_another(item, details):
            yield _explain_one(item, root)


def _follows_from_another(item: ErrorDetails, details: list[ErrorDetails]) -> bool:
    """Whether pydantic only repeats another mistake: about the list around a bad item, or a key that was misspelt."""
    location, kind = item["loc"], item["type"]
    if kind == "default_factory_not_called":
        return True
    for other in details:
        place = other["loc"]
        if len(place) > len(location) and place[: len(location)] == location:
            return True
        beside = other["type"] == "extra_forbidden" and place[:-1] == location[:-1]
        if kind == "missing" and beside and nearest(str(place[-1]), [str(location[-1])]):
            return True
    return False


def _explain_one(item: ErrorDetails, root: type[BaseModel]) -> str:
    kind, location, context = item["type"], item["loc"], item.get("ctx", {})
    path, below = _walk(location, root)
    _, beside = _walk(location[:-1], root)
    if kind == "extra_forbidden":
        name, allowed = str(location[-1]), _keys(beside)
        return f"{_dotted(path, name)}: unknown key, allowed: {', '.join(allowed)}{nearest(name, allowed)}"
    if kind == "missing":
        return f"{path}: missing, and required; the keys here are {', '.join(_keys(beside))}"
    if kind == "union_tag_invalid":
        tag, tags = str(context["tag"]), _all_tags(below)
        return f"{_dotted(path, 'kind')}: found {tag!r}, allowed: {', '.join(tags)}{nearest(tag, tags)}"
    if kind == "union_tag_not_found":
        return f"{_dotted(path, 'kind')}: missing, and required; allowed: {', '.join(_all_tags(below))}"
    if kind == "value_error":
        message = str(context["error"])
        return _dotted(path, message) if _KEY.match(message) else f"{path}: {message}"
    return f"{path}: found {_show(item['input'])}, {_expectation(item)}"


def _dotted(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _expectation(item: ErrorDetails) -> str:
    message = item["msg"]
    if item["type"] == "literal_error":
        allowed = [part.strip("'") for part in re.split(r", | or ", str(item["ctx"]["expected"]))]
        return f"allowed: {', '.join(allowed)}{nearest(str(item['input']), allowed)}"
    if item["type"] in ("model_type", "model_attributes_type", "dict_type"):
        return "expected `key: value` lines below it"
    if item["type"] == "too_short":
        return f"expected at least {item['ctx']['min_length']} of them"
    if item["type"] == "tuple_type":
        return "expected a list"
    if item["type"] == "string_pattern_mismatch":
        return f"expected text that matches {item['ctx']['pattern']}"
    return f"expected {message.removeprefix('Input should be ').removeprefix('String should have ')}"


def _show(value: object) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def _walk(location: tuple[int | str, ...], root: type[BaseModel]) -> tuple[str, Models]:
    """The key path of an error's location, and the models whose keys may stand below it.

    pydantic puts the tag of a union member into the location; a recipe's author never wrote it, so it is left out.
    """
    path = ""
    below: Models = (root,)
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
            continue
        fields = [model.model_fields[part] for model in below if part in model.model_fields]
        if fields:
            path = _dotted(path, part)
            below = tuple(member for field in fields for member in _members(field.annotation))
        else:
            below = tuple(model for model in below if part in _tags(model)) or below
    return path, below


def _all_tags(models: Models) -> list[str]:
    return [tag for model in models for tag in _tags(model)]


def _tags(model: type[BaseModel]) -> tuple[str, ...]:
    """What pydantic writes into a location for this member of a union: one of its kinds, or the class name."""
    kind = model.model_fields.get("kind")
    return tuple(map(str, get_args(kind.annotation))) if kind else (model.__name__,)


def _members(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        return
    for argument in get_args(annotation):
        yield from _members(argument)


def _keys(models: Models) -> list[str]:
    """The keys of `models` in the order they are written; a kind that inherits keys still begins with `kind`."""
    keys = dict.fromkeys(key for model in models for key in model.model_fields)
    return sorted(keys, key=lambda key: key != "kind")
