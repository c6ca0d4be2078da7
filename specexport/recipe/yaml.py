"""Reads a recipe's YAML into JSON text, within bounds: what cannot be a recipe is refused before it costs anything.

Owns the dialect: plain YAML 1.1 without aliases, repeated keys or keys that are no text. Knows no key of a recipe.
"""

import json
import stat
from pathlib import Path
from typing import Any

import yaml

from specexport.errors import RecipeError
from specruntime.manifest.messages import nearest

_MOST_BYTES = 1 << 20
_DEEPEST = 32
_MOST_BITS = 64


class _RecipeLoader(yaml.SafeLoader):
    """The safe loader, with a place in the file for every mistake."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if self.check_event(yaml.AliasEvent):
            raise _mistake("an alias (*name) is not allowed in a recipe; write the value out", event)
        if self.depth >= _DEEPEST:
            raise _mistake(f"nested more than {_DEEPEST} levels deep", event)
        self.depth += 1
        try:
            node: yaml.Node | None = super().compose_node(parent, index)
        finally:
            self.depth -= 1
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep=deep)
        except yaml.YAMLError:
            raise
        except Exception as error:  # Python's own converters: of numbers, dates and what a !!tag forces
            raise _mistake(
                f"{_shorten(node.value)} is not a valid {node.tag.rsplit(':', 1)[-1]} ({_shorten(error)})",
                node,
            ) from None
        if isinstance(value, int) and value.bit_length() > _MOST_BITS:
            raise _mistake(f"{_shorten(node.value)} is a number of more than {_MOST_BITS} bits", node)
        if isinstance(value, str) and not _is_unicode(value):
            raise _mistake("this text holds half a character (a lone surrogate); write the character", node)
        return value


def _mistake(problem: str, at: Any) -> yaml.MarkedYAMLError:
    """`at`: the node or event with the place."""
    return yaml.constructor.ConstructorError(None, None, problem, at.start_mark)


def _shorten(value: object) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 40 else text[:37] + "..."


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _construct_mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict[str, Any]:
    mapping: dict[str, Any] = {}
    for key_node, value_node in node.value:
        if not isinstance(key_node, yaml.ScalarNode) or not _is_unicode(key_node.value):
            raise _mistake("a key must be a word", key_node)
        key = key_node.value
        if key in mapping:
            raise _mistake(f"the key {key!r} is written twice; keep one", key_node)
        mapping[key] = loader.construct_object(value_node, deep=True)
    return mapping


_RecipeLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _construct_mapping)


def read_yaml(path: Path) -> str:
    """Return the recipe file as JSON text. Raises `RecipeError` for a file that is missing, unreadable or not a
    mapping.
    """
    text = _read_text(path)
    try:
        document = yaml.load(text, Loader=_RecipeLoader)
    except yaml.YAMLError as error:
        raise RecipeError(_explain_yaml(path, error)) from None
    if not isinstance(document, dict):
        found = "nothing" if document is None else f"a {type(document).__name__}"
        raise RecipeError(f"{path}: found {found}, expected `key: value` lines starting with `name:`")
    return json.dumps(document, default=str)


def _read_text(path: Path) -> str:
    advice = "give the path of a recipe's YAML file"
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # a pipe or device may never end
            raise RecipeError(f"{path}: cannot be read: not a regular file; {advice}")
        with path.open("rb") as stream:
            raw = stream.read(_MOST_BYTES + 1)
        if len(raw) > _MOST_BYTES:
            raise RecipeError(f"{path}: larger than {_MOST_BYTES >> 20} MB, so it is not a recipe; {advice}")
        return raw.decode()
    except FileNotFoundError:
        beside = [p.name for p in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
        raise RecipeError(f"{path}: no such recipe file{nearest(path.name, beside)}") from None
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path}: cannot be read: not UTF-8 text ({error.reason}); {advice}") from None
    except (OSError, ValueError) as error:  # ValueError: no path at all, such as one with a NUL
        reason = error.strerror if isinstance(error, OSError) else error
        raise RecipeError(f"{str(path)[:80]!r}: cannot be read: {reason}; {advice}") from None


def _explain_yaml(path: Path, error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    place = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    return f"{place}: not valid YAML: {problem}"
