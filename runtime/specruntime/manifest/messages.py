"""Turns pydantic's findings about closed models into lines: the key path, what was found, what is allowed.

Knows the rules of models that forbid unknown keys, and nothing of what the models are about. What comes out is one
printable line of bounded length, whatever was in the document.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple, Protocol, get_args, get_origin, runtime_checkable

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

Models = tuple[type[BaseModel], ...]
Location = tuple[int | str, ...]
Finding = Mapping[str, Any]  # what `ValidationError.errors` lists

TAG_KEYS = ("kind", "format")
_KEY = re.compile(r"[a-z_0-9.]+: ")
_WORDS = {"None": "null", "True": "true", "False": "false"}  # pydantic's, as documents write them
_LONGEST_PATH = 200
UNSUPPORTED = "unsupported"
"""The type of a finding about a value that a model knows and refuses, whose message is what it expects and why."""
# Findings that say more than what a value should have been.
_TOLD_APART = (
    "extra_forbidden", "missing", "union_tag_invalid", "union_tag_not_found", "value_error", UNSUPPORTED,
)  # fmt: skip


def nearest(name: str, allowed: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the closest allowed name, or nothing."""
    close = get_close_matches(name, [str(item) for item in allowed], n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


def one_of(name: str, allowed: Iterable[str]) -> str:
    """Return `allowed: x, y; did you mean 'x'?` for a word that is not among them."""
    names = list(allowed)
    return f"allowed: {', '.join(names)}{nearest(name, names)}"


def describe_problem(error: ValidationError, root: type[BaseModel]) -> str:
    """Return the problem worth mending first, which is `worst`'s.

    Where a value may be of several kinds, what is expected of each.
    """
    first = worst(error)
    line, place = describe(first, root), place_of(first["loc"], root).path
    if first["type"] in _TOLD_APART:
        return line
    beside = [item for item in error.errors(include_url=False) if place_of(item["loc"], root).path == place]
    _, *others = dict.fromkeys(_expectation(item) for item in beside if item["type"] not in _TOLD_APART)
    return " or ".join([line, *(text.removeprefix("expected ") for text in others)])


def worst(error: ValidationError) -> Finding:
    """Return a value that is refused for a reason of its own, since it explains unknown keys too; else an
    unknown key.
    """
    found = error.errors(include_url=False)
    ranked = sorted(found, key=lambda item: (item["type"] != UNSUPPORTED, item["type"] != "extra_forbidden"))
    return ranked[0]


def path_of(item: Finding, root: type[BaseModel]) -> str:
    """Return the key path that a finding of a validation of `root` is about, an unknown key with its name."""
    location = item["loc"]
    if item["type"] == "extra_forbidden":
        return _dotted(place_of(location[:-1], root).path, str(location[-1]))
    return place_of(location, root).path


def describe(item: Finding, root: type[BaseModel]) -> str:
    """One finding of a validation of `root`."""
    kind, location, context = item["type"], item["loc"], item.get("ctx", {})
    path, below, _ = place_of(location, root)
    beside = place_of(location[:-1], root).below
    if kind == "extra_forbidden":
        return f"{_shown(path_of(item, root))}: unknown key, {one_of(str(location[-1]), keys_of(beside))}"
    if kind == "missing":
        return f"{_shown(path)}: missing, and required; the keys here are {', '.join(keys_of(beside))}"
    if kind == "union_tag_invalid":
        tag = str(context["tag"])
        return f"{_shown(_dotted(path, _key_of(context)))}: found {shorten(tag)}, {one_of(tag, _all_tags(below))}"
    if kind == "union_tag_not_found":
        tags = ", ".join(_all_tags(below))
        return f"{_shown(_dotted(path, _key_of(context)))}: missing, and required; allowed: {tags}"
    if kind == "value_error":
        message = str(context["error"])
        return _dotted(path, message) if _KEY.match(message) else f"{_shown(path)}: {message}"
    return f"{_shown(path)}: found {_as_json(item['input'])}, {_expectation(item)}"


def shorten(found: object, limit: int = 60) -> str:
    """`found` as Python writes it, cut to `limit` characters."""
    try:
        text = repr(found)
    except RecursionError:
        text = f"a deeply nested {type(found).__name__}"
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _as_json(found: object, limit: int = 60) -> str:
    """`found` as documents write it, cut to `limit` characters."""
    try:
        text = json.dumps(found, default=str, ensure_ascii=False)
    except (RecursionError, TypeError, ValueError):
        return shorten(found, limit)
    if not text.isprintable():
        text = json.dumps(found, default=str)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _shown(path: str) -> str:
    if not path:
        return "the whole document"
    return path if path.isprintable() and len(path) <= _LONGEST_PATH else shorten(path, _LONGEST_PATH)


def _dotted(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _expectation(item: Finding) -> str:
    kind, context = item["type"], item.get("ctx", {})
    if kind == "literal_error":
        return one_of(str(item["input"]), _literals(str(context["expected"])))
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return "expected keys with values"
    if kind == "too_short":
        return f"expected at least {context['min_length']} of them"
    if kind == "too_long":
        return f"expected at most {context['max_length']} of them"
    if kind == "tuple_type":
        return "expected a list"
    if kind == "string_pattern_mismatch":
        return f"expected text that matches {context['pattern']}"
    message = item["msg"].removeprefix("Input should be ").removeprefix("String should have ")
    return f"expected {_WORDS.get(message, message)}"


def _literals(expected: str) -> list[str]:
    return [_WORDS.get(part, part.strip("'")) for part in re.split(r", | or ", expected)]


class Place(NamedTuple):
    """Where in a document: the key path, the models whose keys may stand below it, and the fields that have the key."""

    path: str
    below: Models
    fields: tuple[FieldInfo, ...]


def place_of(location: Location, root: type[BaseModel]) -> Place:
    """Return the place of an error's location.

    pydantic puts the tag of a union's member into the location; the author of a document never wrote it, so it is left
    out. A key of a mapping is not.
    """
    path = ""
    below: Models = (root,)
    named: tuple[FieldInfo, ...] = ()
    keyed = False
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
            continue
        fields = tuple(model.model_fields[part] for model in below if part in model.model_fields)
        if keyed:
            path, keyed = _dotted(path, part), False
        elif fields:
            path, named = _dotted(path, part), fields
            keyed = any(_is_mapping(field.annotation) for field in fields)
            below = tuple(member for field in fields for member in _members_of(field))
        else:
            below = tuple(model for model in below if part in _tags(model)) or below
    return Place(path, below, named)


def _is_mapping(annotation: Any) -> bool:
    origin = get_origin(annotation) or annotation
    return (isinstance(origin, type) and issubclass(origin, Mapping)) or any(
        _is_mapping(argument) for argument in get_args(annotation) if get_origin(argument) is not None
    )


@runtime_checkable
class OpenUnion(Protocol):
    """In the metadata of a field: the models that it may hold, which are more than its annotation says."""

    def members(self) -> Iterable[type[BaseModel]]: ...


def _members_of(field: FieldInfo) -> Iterator[type[BaseModel]]:
    unions = [each for each in field.metadata if isinstance(each, OpenUnion)]
    if not unions:
        return _members(field.annotation)
    return (member for union in unions for member in union.members())


def _members(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        return
    for argument in get_args(annotation):
        yield from _members(argument)


def _all_tags(models: Models) -> list[str]:
    return [tag for model in models for tag in _tags(model)]


def _tags(model: type[BaseModel]) -> tuple[str, ...]:
    """Return what pydantic writes into a location for this member of a union: one of its kinds, or the class name."""
    fields = (model.model_fields.get(key) for key in TAG_KEYS)
    tag = next((field for field in fields if field is not None), None)
    return tuple(map(str, get_args(tag.annotation))) if tag else (model.__name__,)


def _key_of(context: Mapping[str, Any]) -> str:
    """Return the key that discriminates the members of a union; a union discriminated by a function has none."""
    key = str(context["discriminator"]).strip("'")
    return key if key in TAG_KEYS else "kind"


def keys_of(models: Models) -> list[str]:
    """Return the keys of `models` in the order they are written; a kind that inherits keys still begins with `kind`."""
    keys = dict.fromkeys(key for model in models for key in model.model_fields)
    return sorted(keys, key=lambda key: key != "kind")
