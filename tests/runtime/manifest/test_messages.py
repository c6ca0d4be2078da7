"""One line per problem of a document, whatever is in it: key path, what was found, what is allowed."""

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from specruntime.manifest.messages import describe_problem, one_of


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Square(Closed):
    kind: Literal["square"]
    side: int


class Circle(Closed):
    kind: Literal["circle", "disc"]
    radius: Annotated[int, Field(ge=1)]


class Document(Closed):
    name: str
    shape: Annotated[Square | Circle, Field(discriminator="kind")]
    text: str | list[int] = ""
    neutral: None = None
    echo: Literal[False] = False
    sizes: dict[str, Square] = {}
    several: list[Square] = []


SOUND: dict[str, Any] = {"name": "n", "shape": {"kind": "circle", "radius": 2}}
DEEP: Any = []
for _ in range(5000):
    DEEP = [DEEP]

PROBLEMS: list[tuple[dict[str, Any], str]] = [
    (
        {"nmae": "n"},
        "nmae: unknown key, allowed: name, shape, text, neutral, echo, sizes, several; did you mean 'name'?",
    ),
    ({"name": 3}, "name: found 3, expected a valid string"),
    ({"shape": {}}, "shape.kind: missing, and required; allowed: square, circle, disc"),
    (
        {"shape": {"kind": "circl"}},
        "shape.kind: found 'circl', allowed: square, circle, disc; did you mean 'circle'?",
    ),
    ({"shape": {"kind": "disc"}}, "shape.radius: missing, and required; the keys here are kind, radius"),
    (
        {"shape": {"kind": "disc", "radius": 0}},
        "shape.radius: found 0, expected greater than or equal to 1",
    ),
    ({"shape": "round"}, 'shape: found "round", expected keys with values'),
    (
        {"several": [{"kind": "square", "sid": 1}]},
        "several[0].sid: unknown key, allowed: kind, side; did you mean 'side'?",
    ),
    (
        {"sizes": {"name": {"kind": "square", "side": "x"}}},
        'sizes.name.side: found "x", expected a valid integer',
    ),
    ({"text": {"a": 1}}, 'text: found {"a": 1}, expected a valid string or a valid list'),
    ({"a\nb": 1}, "'a\\nb': unknown key, allowed: name, shape, text, neutral, echo, sizes, several"),
    ({"name": ["\u2028" * 3]}, 'name: found ["\\u2028\\u2028\\u2028"], expected a valid string'),
    ({"name": ["x" * 99]}, f'name: found ["{"x" * 55}..., expected a valid string'),
    ({"neutral": 3, "echo": True}, "neutral: found 3, expected null"),
    ({"echo": True}, "echo: found true, allowed: false"),
    ({"name": DEEP}, "name: found a deeply nested list, expected a valid string"),
]


@pytest.mark.parametrize(("given", "line"), PROBLEMS, ids=[line.partition(",")[0] for _, line in PROBLEMS])
def test_a_problem_is_one_line_with_its_key_and_what_is_allowed(given: dict[str, Any], line: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Document.model_validate(SOUND | given)
    assert describe_problem(caught.value, Document) == line


def test_an_unknown_key_is_told_before_what_it_explains() -> None:
    with pytest.raises(ValidationError) as caught:
        Document.model_validate({"shape": {"kind": "disc", "radius": 0}, "nmae": "n"})
    assert describe_problem(caught.value, Document).startswith("nmae: unknown key")


def test_a_document_that_is_no_mapping_is_called_the_whole_document() -> None:
    with pytest.raises(ValidationError) as caught:
        Document.model_validate([1])
    assert (
        describe_problem(caught.value, Document) == "the whole document: found [1], expected keys with values"
    )


def test_a_word_far_from_all_that_is_allowed_gets_no_guess() -> None:
    assert one_of("zzz", ["name", "shape"]) == "allowed: name, shape"
