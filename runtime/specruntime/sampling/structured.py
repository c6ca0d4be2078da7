"""What an answer must look like: the options of a constraint, with the names that users of vLLM know.

Knows nothing of how a constraint is compiled; see `specruntime.constraints`.
"""

import json as json_text
from collections.abc import Mapping
from dataclasses import dataclass, fields
from hashlib import sha256
from typing import Any, Self

from specruntime.errors import InvalidArgument
from specruntime.manifest.messages import one_of

KINDS = ("json", "regex", "choice", "grammar", "json_object")
_OF_VLLM = frozenset(("structural_tag", "disable_fallback"))


@dataclass(frozen=True)
class StructuredOutputsParams:
    """The form of an answer: exactly one of `json`, `regex`, `choice`, `grammar` and `json_object`.

    Raises `InvalidArgument` naming the field, and for an option that is not listed. That the form itself makes sense
    is found out when it is compiled, for the tokenizer of a bundle.
    """

    json: str | Mapping[str, Any] | bool | None = None  # a JSON schema, or its text
    regex: str | None = None  # of the whole answer
    choice: tuple[str, ...] | None = None  # the answer is one of these; a list is taken too
    grammar: str | None = None  # in the Lark variant of llguidance, or GBNF
    json_object: bool | None = None  # True: any JSON object
    # JSON is written as Python's `json.dumps` does: ", " and ": ", no other white space. False: any between tokens.
    disable_any_whitespace: bool = True
    whitespace_pattern: str | None = None  # a regex of what may stand between the tokens of JSON instead
    disable_additional_properties: bool = False  # objects have only properties that their schema lists

    def __new__(cls, *_: object, **options: object) -> Self:
        """Refuse unknown options by name; the fields are set by `__init__`."""
        known = [each.name for each in fields(cls)]
        for name in options:
            if name in _OF_VLLM:
                raise InvalidArgument(
                    f"structured_outputs.{name} is an option of vLLM that is not supported here: leave it out"
                )
            if name not in known:
                raise InvalidArgument(f"structured_outputs.{name} is unknown; {one_of(name, known)}")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        choice: object = self.choice
        if isinstance(choice, list):
            object.__setattr__(self, "choice", tuple(choice))
        given = [name for name in KINDS if getattr(self, name) is not None]
        if len(given) != 1:
            raise InvalidArgument(
                f"structured_outputs has {' and '.join(given) or 'no form'}, expected exactly one of {', '.join(KINDS)}"
            )
        self._check()

    @property
    def kind(self) -> str:
        """Which of the forms is given."""
        return next(name for name in KINDS if getattr(self, name) is not None)

    @property
    def text(self) -> str:
        """The form as text: a schema and a list of choices as JSON, in their own order."""
        form = getattr(self, self.kind)
        return form if isinstance(form, str) else json_text.dumps(form, ensure_ascii=False)

    @property
    def digest(self) -> str:
        """The same for options that allow the same answers because they are the same."""
        options = (
            self.kind, self.text, self.disable_any_whitespace, self.whitespace_pattern,
            self.disable_additional_properties,
        )  # fmt: skip
        return sha256(json_text.dumps(options).encode()).hexdigest()

    def _check(self) -> None:
        schema = self.json is None or isinstance(self.json, str | Mapping | bool)
        self._require("json", schema, "a JSON schema, as a mapping or as text")
        for name in ("regex", "grammar", "whitespace_pattern"):
            value = getattr(self, name)
            self._require(name, value is None or (isinstance(value, str) and value != ""), "a text")
        choices = self.choice is None or (
            isinstance(self.choice, tuple)
            and len(self.choice) > 0
            and all(isinstance(choice, str) and choice for choice in self.choice)
        )
        self._require("choice", choices, "a list of texts, at least one, none of them empty")
        self._require("json_object", self.json_object in (None, True), "True, or left out")
        for name in ("disable_any_whitespace", "disable_additional_properties"):
            self._require(name, isinstance(getattr(self, name), bool), "True or False")
        self._check_options()
        try:
            self.text.encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidArgument(
                f"structured_outputs.{self.kind} cannot be written as JSON: {error}"
            ) from error

    def _check_options(self) -> None:
        """Refuse options that the form does not have."""
        of_json = ("json", "json_object")
        for name, kinds in (
            ("disable_any_whitespace", of_json),
            ("whitespace_pattern", of_json),
            ("disable_additional_properties", ("json",)),
        ):
            if getattr(self, name) != getattr(type(self), name) and self.kind not in kinds:
                raise InvalidArgument(
                    f"structured_outputs.{name} is given with {self.kind}, and goes with {' and '.join(kinds)} alone: "
                    "leave it out"
                )

    def _require(self, name: str, holds: bool, allowed: str) -> None:
        if not holds:
            kind = type(getattr(self, name)).__name__
            raise InvalidArgument(f"structured_outputs.{name} is of type {kind}, expected {allowed}")
