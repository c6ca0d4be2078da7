"""From the options of a constraint to a grammar of llguidance, with the limits that keep hostile ones out.

The library refuses by itself what nests too deeply, and what it does not implement of JSON Schema: a keyword that it
ignored would make answers that do not validate.
"""

import json
from collections.abc import Callable
from importlib import import_module
from typing import Any

from specruntime.errors import BackendMissing, ConstraintInvalid, ConstraintTooLarge
from specruntime.sampling.structured import StructuredOutputsParams

# Bytes of a form. The library's time grows with the square of the alternatives of a grammar.
MAX_SCHEMA_BYTES = 512 * 2**10
MAX_TEXT_BYTES = 128 * 2**10
MAX_DEPTH = 100  # of the values of a schema; the library stops a little later
_SHOWN = 200  # characters
_LIMITS = {
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 200_000,
    "step_max_items": 50_000,
    "max_items_in_row": 2_000,
    "max_lexer_states": 100_000,
    "max_grammar_size": 200_000,
    "verbose_errors": False,
}
_AS_DUMPED = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def library() -> Any:
    """Return llguidance. Raises `BackendMissing` with the install line where it is not installed."""
    try:
        return import_module("llguidance")
    except ImportError as error:
        raise BackendMissing(
            "structured_outputs need llguidance, which is not installed: pip install 'specruntime[structured]', "
            "or leave them out"
        ) from error


def limits() -> Any:
    """Return what the library may use up while it compiles a grammar and for each step."""
    return library().LLParserLimits(**_LIMITS)


def grammar_of(params: StructuredOutputsParams) -> str:
    """Return the grammar. Raises `ConstraintTooLarge` or `ConstraintInvalid`, naming the option."""
    kind, form = params.kind, params.text
    most = MAX_SCHEMA_BYTES if kind == "json" else MAX_TEXT_BYTES
    if (size := len(form.encode())) > most:
        raise ConstraintTooLarge(f"structured_outputs.{kind} has {size} bytes, expected at most {most}")
    try:
        return _WRITERS[kind](form, params)
    except ConstraintInvalid:
        raise
    except RecursionError as error:
        raise ConstraintTooLarge(f"structured_outputs.{kind} nests too deeply") from error
    except Exception as error:  # the library raises ValueError, its converters whatever they meet
        raise invalid(kind, str(error)) from error


def invalid(kind: str, problem: str) -> ConstraintInvalid:
    """Return the error for what the library says of a form; the beginning and the end of it say enough."""
    said = " ".join(problem.split())
    shown = said if len(said) <= 2 * _SHOWN else f"{said[:_SHOWN]} ... {said[-_SHOWN:]}"
    return ConstraintInvalid(f"structured_outputs.{kind} cannot be used: {shown or 'unknown problem'}")


def _from_schema(form: str, params: StructuredOutputsParams) -> str:
    try:
        schema: object = json.loads(form)
    except ValueError as error:
        raise ConstraintInvalid(f"structured_outputs.json is not JSON: {error}") from error
    if not isinstance(schema, dict | bool):
        raise ConstraintInvalid(
            f"structured_outputs.json is a JSON {type(schema).__name__}, expected an object"
        )
    _require_shallow(schema)
    if params.disable_additional_properties:
        _close(schema)
    return _json_grammar(schema, params)


def _json_grammar(schema: dict[str, Any] | bool, params: StructuredOutputsParams) -> str:
    overrides: dict[str, Any] = dict(_AS_DUMPED)
    if params.whitespace_pattern is not None:
        overrides = {"whitespace_flexible": True, "whitespace_pattern": params.whitespace_pattern}
    elif not params.disable_any_whitespace:
        overrides = {"whitespace_flexible": True}
    text = json.dumps(schema)
    grammar: str = library().LLMatcher.grammar_from_json_schema(text, overrides=overrides)
    return grammar


def _from_choice(form: str, params: StructuredOutputsParams) -> str:
    assert params.choice is not None
    alternatives = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in params.choice)
    grammar: str = library().LLMatcher.grammar_from_lark(f"start: {alternatives}")
    return grammar


def _from_regex(form: str, params: StructuredOutputsParams) -> str:
    grammar: str = library().LLMatcher.grammar_from_regex(form)
    return grammar


def _from_grammar(form: str, params: StructuredOutputsParams) -> str:
    grammar: str = library().grammar_from("grammar", form)
    return grammar


def _any_object(form: str, params: StructuredOutputsParams) -> str:
    return _json_grammar({"type": "object"}, params)


_WRITERS: dict[str, Callable[[str, StructuredOutputsParams], str]] = {
    "json": _from_schema,
    "regex": _from_regex,
    "choice": _from_choice,
    "grammar": _from_grammar,
    "json_object": _any_object,
}


def _require_shallow(schema: object) -> None:
    level, depth = [schema], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise ConstraintTooLarge(
                f"structured_outputs.json nests deeper than {MAX_DEPTH} values, expected at most that"
            )
        inner: list[object] = []
        for value in level:
            if isinstance(value, dict):
                inner += value.values()
            elif isinstance(value, list):
                inner += value
        level = inner


def _close(schema: object) -> None:
    """Allow listed properties alone in every object that says nothing of others."""
    if isinstance(schema, list):
        for value in schema:
            _close(value)
    if isinstance(schema, dict):
        if "properties" in schema and not {"additionalProperties", "patternProperties"} & schema.keys():
            schema["additionalProperties"] = False
        for value in schema.values():
            _close(value)
