"""What is wrong with a recipe: one line per mistake, and none for what only follows from another."""

import json
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from specruntime.manifest.messages import TAG_KEYS, Models, Place, describe, keys_of, nearest, place_of

_NUMBERS = ("int_type", "int_parsing", "int_from_float", "float_type", "float_parsing", "finite_number")
_KEYS = ("model_type", "model_attributes_type", "dict_type")
_MOST_KEYS = 12


class Conflicts(ValueError):
    """Values that are right by themselves and do not go together; `lines` holds one line per conflict."""

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


def explain(error: ValidationError, root: type[BaseModel]) -> Iterator[str]:
    """One line per mistake of a validation of `root`."""
    details = error.errors()
    for item in details:
        raised = item.get("ctx", {}).get("error")
        if isinstance(raised, Conflicts):
            yield from raised.lines
        elif not _follows_from_another(item, details):
            yield describe(item, root) + _example(item, root)


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


def _example(item: ErrorDetails, root: type[BaseModel]) -> str:
    """Return what would be right in place of nothing, or of a value of the wrong type; "" where the message says so."""
    place = place_of(item["loc"], root)
    if item["type"] in _NUMBERS:
        shown = next((value for field in place.fields if (value := _number(field)) is not None), None)
        return f", such as {json.dumps(shown)}" if shown is not None else ""
    if item["type"] == "bool_type":
        return ": true or false"
    if item["type"] == "missing" and place.fields:
        return f"; such as {place.path.rpartition('.')[2]}: {_value(place.fields[0])}"
    if item["type"] in _KEYS and place.below and place.path:
        meant = _meant(place.below, item["input"])
        keys = keys_of((meant,) if meant else place.below)
        named = ", ".join(keys[:_MOST_KEYS]) + (", ..." if len(keys) > _MOST_KEYS else "")
        return f": {named}; such as {_mapping(place, item['input'])}"
    return ""


def _number(field: FieldInfo) -> Any:
    """Return a number that the field takes: its default, or the example that it gives."""
    default = [] if field.default is None else [field.default]
    for value in (*default, *(field.examples or ())):
        while isinstance(value, (list, tuple)) and value:
            value = value[0]
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return value
    return None


def _mapping(place: Place, found: object) -> str:
    """`{key: value, ...}` of the model that `found` is a word of, or an example: what it cannot do without."""
    model = _meant(place.below, found)
    if model is None and (examples := place.fields[0].examples):
        return _shown(examples[0])
    model = model or place.below[0]
    required = [key for key in keys_of((model,)) if model.model_fields[key].is_required()]
    pairs = {key: _value(model.model_fields[key]) for key in required}
    if key := _key_of_word(model, found):
        pairs[key] = str(found)
    return f"{{{', '.join(f'{key}: {value}' for key, value in pairs.items())}}}"


def _meant(models: Models, word: object) -> type[BaseModel] | None:
    """Return the model that `word` is a kind of, or else a value of."""
    keys = {model: key for model in models if (key := _key_of_word(model, word))}
    return min(keys, key=lambda model: keys[model] not in TAG_KEYS, default=None)


def _key_of_word(model: type[BaseModel], word: object) -> str | None:
    """Return the key of `model` that takes `word` as one of a few values."""
    fields = model.model_fields
    return next((key for key in keys_of((model,)) if word in _words(fields[key].annotation)), None)


def _words(annotation: Any) -> list[object]:
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    return [word for argument in get_args(annotation) for word in _words(argument)]


def _value(field: FieldInfo) -> str:
    if field.examples:
        return _shown(field.examples[0])
    words = _words(field.annotation)
    return str(words[0]) if words else "..."


def _shown(value: Any) -> str:
    """As one would write it in a recipe, in one line."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_shown(item)}' for key, item in value.items())}}}"
    return value if isinstance(value, str) else json.dumps(value)
