"""Many JSON schemas, of every keyword that is claimed: random answers validate, or the schema is refused by name."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import jsonschema_rs
import numpy as np
import pytest

from specruntime.constraints import Compiler
from specruntime.errors import ConstraintInvalid
from specruntime.sampling.params import SamplingParams
from specruntime.sampling.structured import StructuredOutputsParams
from specruntime.text.codec import TextCodec
from tests.runtime.constraints.vocabularies import codec_of, compiler_of

LEAVES: dict[str, Any] = {
    "string": {"type": "string", "maxLength": 5},
    "exact string": {"type": "string", "minLength": 2, "maxLength": 2},
    "pattern": {"type": "string", "pattern": "^[a-c]{1,3}[0-9]?$"},
    "date": {"type": "string", "format": "date"},
    "uuid": {"type": "string", "format": "uuid"},
    "ipv4": {"type": "string", "format": "ipv4"},
    "integer": {"type": "integer", "minimum": -50, "maximum": 200},
    "open integer": {"type": "integer", "exclusiveMinimum": 5, "exclusiveMaximum": 90},
    "multiple": {"type": "integer", "multipleOf": 3, "minimum": 0, "maximum": 99},
    "number": {"type": "number", "minimum": 0, "maximum": 10},
    "boolean": {"type": "boolean"},
    "null": {"type": "null"},
    "enum": {"enum": ["a", 1, None, True, "naïve é"]},
    "const": {"const": {"x": [1, "y"]}},
    "types": {"type": ["boolean", "null"]},
}
WRAPPERS: dict[str, Any] = {
    "alone": lambda s: s,
    "required": lambda s: {
        "type": "object", "properties": {"v": s}, "required": ["v"], "additionalProperties": False,
    },
    "optional": lambda s: {
        "type": "object", "properties": {"v": s, "w": {"const": 1}}, "additionalProperties": False,
    },
    "any properties": lambda s: {"type": "object", "additionalProperties": s, "maxProperties": 2},
    "pattern properties": lambda s: {
        "type": "object", "patternProperties": {"^[a-b]$": s}, "additionalProperties": False, "maxProperties": 2,
    },
    "items": lambda s: {"type": "array", "items": s, "minItems": 1, "maxItems": 2},
    "prefix items": lambda s: {
        "type": "array", "prefixItems": [s, {"type": "boolean"}], "items": False, "minItems": 2,
    },
    "anyOf": lambda s: {"anyOf": [s, {"const": "other"}]},
    "allOf": lambda s: {"allOf": [s]},
    "$ref": lambda s: {
        "$defs": {"s": s}, "type": "object", "properties": {"v": {"$ref": "#/$defs/s"}}, "required": ["v"],
        "additionalProperties": False,
    },
    "draft 7": lambda s: {
        "definitions": {"s": s}, "title": "t", "description": "d", "default": None,
        "type": "array", "items": {"$ref": "#/definitions/s"}, "minItems": 1, "maxItems": 1,
    },
    "recursive": lambda s: {
        "$defs": {"n": {
            "type": "object", "properties": {"v": s, "n": {"$ref": "#/$defs/n"}}, "required": ["v"],
            "additionalProperties": False,
        }},
        "$ref": "#/$defs/n",
    },
    "nested": lambda s: {
        "type": "object",
        "properties": {"a": {"type": "array", "items": {
            "type": "object", "properties": {"v": s}, "required": ["v"], "additionalProperties": False,
        }, "maxItems": 2, "minItems": 1}},
        "required": ["a"], "additionalProperties": False,
    },
    "with others": lambda s: {
        "type": "object", "properties": {**{f"k{i}": {"const": i} for i in range(5)}, "v": s},
        "required": ["k0", "k4", "v"], "additionalProperties": False,
    },
}  # fmt: skip
SCHEMAS = {f"{w}: {leaf}": wrap(LEAVES[leaf]) for (w, wrap), leaf in product(WRAPPERS.items(), LEAVES)}
# What an answer of this length has not ended is cut off: then it is the beginning of a valid one.
LONGEST = 250


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> TextCodec:
    return codec_of("byte-level", tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def compiled(codec: TextCodec) -> Compiler:
    return compiler_of(codec)


def answer(compiled: Compiler, codec: TextCodec, schema: Any, seed: int) -> str | None:
    """A random answer, which ends where it may every other time; None for one that was cut off."""
    form = StructuredOutputsParams(json=schema)
    constraint, random = (
        compiled.constrain(SamplingParams(structured_outputs=form)),
        np.random.default_rng(seed),
    )
    assert constraint is not None
    data = b""
    for _ in range(LONGEST):
        mask = constraint.mask()
        ends = [token for token in compiled._eos if token in mask]
        token = ends[0] if ends and random.random() < 0.5 else int(random.choice(mask.ids))
        if token in compiled._eos:
            return data.decode()
        data += codec.token_bytes(token) or b""
        constraint.commit([token])
    return None


def test_there_are_enough_of_them() -> None:
    assert len(SCHEMAS) >= 200


@pytest.mark.parametrize("name", SCHEMAS)
def test_random_answers_validate(compiled: Compiler, codec: TextCodec, name: str) -> None:
    texts = [answer(compiled, codec, SCHEMAS[name], seed) for seed in range(3)]
    for text in texts:
        if text is not None:
            value = json.loads(text)
            assert jsonschema_rs.is_valid(SCHEMAS[name], value, validate_formats=True), text


@pytest.mark.parametrize(
    "keyword",
    [
        {"type": "array", "uniqueItems": True},
        {"type": "array", "contains": {"const": 1}},
        {"type": "object", "propertyNames": {"maxLength": 2}},
        {"type": "object", "dependentRequired": {"a": ["b"]}},
        {"type": "object", "unevaluatedProperties": False},
        {"not": {"type": "string"}},
        {"if": {"type": "string"}, "then": {"maxLength": 2}},
    ],
)
def test_a_keyword_that_is_not_followed_is_refused(
    compiled: Compiler, codec: TextCodec, keyword: Any
) -> None:
    with pytest.raises(ConstraintInvalid, match=r"structured_outputs\.json"):
        answer(compiled, codec, keyword, 1)


def test_no_other_document_is_read(compiled: Compiler, codec: TextCodec, tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text('{"type": "string"}')
    for reference in (f"file://{tmp_path}/schema.json", "http://127.0.0.1:9/schema.json"):
        with pytest.raises(ConstraintInvalid):
            answer(compiled, codec, {"$ref": reference}, 1)
