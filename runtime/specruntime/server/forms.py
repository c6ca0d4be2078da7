"""The form that a request asks of its answer: `response_format` of the OpenAI API, and the fields of vLLM.

Owns their names and shapes, and how each becomes the library's `StructuredOutputsParams`.
"""

from typing import Annotated, Any, Literal

from pydantic import Field

from specruntime.sampling.structured import StructuredOutputsParams
from specruntime.server.neutral import ClosedBody
from specruntime.server.problems import Problem

Text = Annotated[str, Field(min_length=1)]
Choices = Annotated[list[Text], Field(min_length=1)]
Schema = dict[str, Any] | Text
_GUIDED = ("json", "regex", "choice", "grammar")


class TextFormat(ClosedBody):
    type: Literal["text"]


class JsonObjectFormat(ClosedBody):
    type: Literal["json_object"]


class NamedSchema(ClosedBody):
    name: str
    """A label."""
    description: str | None = None
    """A label: say in the prompt what the model should know."""
    definition: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None
    """Answers follow the schema either way."""


class JsonSchemaFormat(ClosedBody):
    type: Literal["json_schema"]
    json_schema: NamedSchema


ResponseFormat = Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")]


class StructuredOutputs(ClosedBody):
    """As in vLLM: exactly one of the first five."""

    definition: Annotated[Schema | None, Field(alias="json")] = None
    regex: Text | None = None
    choice: Choices | None = None
    grammar: Text | None = None
    json_object: Literal[True] | None = None
    disable_any_whitespace: bool | None = None
    whitespace_pattern: Text | None = None
    disable_additional_properties: bool | None = None


class Formed(ClosedBody):
    """The fields of a request that ask for a form, at most one of which may be given."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    # The older names of vLLM.
    guided_json: Schema | None = None
    guided_regex: Text | None = None
    guided_choice: Choices | None = None
    guided_grammar: Text | None = None
    guided_whitespace_pattern: Text | None = None

    @property
    def form(self) -> StructuredOutputsParams | None:
        """Return the form; None for a free answer. Raises `Problem` for several, `InvalidArgument` as the params do."""
        guided = {name: value for name in _GUIDED if (value := getattr(self, f"guided_{name}")) is not None}
        asked = [f"guided_{name}" for name in guided]
        found: dict[str, Any] = {**guided, "whitespace_pattern": self.guided_whitespace_pattern}
        if self.structured_outputs is not None:
            asked.append("structured_outputs")
            found = self.structured_outputs.model_dump(by_alias=True, exclude_none=True)
        if self.response_format is not None and self.response_format.type != "text":
            asked.append("response_format")
            found = _of_format(self.response_format)
        if self.guided_whitespace_pattern is not None and asked != ["guided_json"]:
            raise Problem(
                400,
                "guided_whitespace_pattern is given, which goes with guided_json alone: leave it out",
                parameter="guided_whitespace_pattern",
            )
        if len(asked) > 1:
            raise Problem(
                400, f"{' and '.join(asked)} ask for a form each: give one of them", parameter=asked[0]
            )
        return StructuredOutputsParams(**found) if asked else None


def _of_format(asked: JsonObjectFormat | JsonSchemaFormat) -> dict[str, Any]:
    if isinstance(asked, JsonObjectFormat) or asked.json_schema.definition is None:
        return {"json_object": True}
    return {"json": asked.json_schema.definition}
