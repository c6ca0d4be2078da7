"""The tools that a chat offers, and whether the model may or must call one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from specruntime.errors import InvalidArgument

MAX_TOOLS = 128
ToolDescription = Mapping[str, Any]
Choice: TypeAlias = Literal["none", "auto", "required"]
_TEXT = "{'type': 'function', 'function': {'name': ..., 'parameters': ...}}"


@dataclass(frozen=True)
class ToolOffer:
    """Tools as the API of OpenAI describes them, in `function` of each; what may be called, and how often."""

    tools: tuple[ToolDescription, ...] = ()
    choice: Choice = "auto"
    name: str | None = None  # with "required": the one that must be called
    parallel: bool = True  # whether one answer may have several calls

    def __post_init__(self) -> None:
        """Raise `InvalidArgument` for what does not go together."""
        names = list(self.names)
        if len(names) > MAX_TOOLS:
            raise InvalidArgument(f"the request offers {len(names)} tools, expected at most {MAX_TOOLS}")
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise InvalidArgument(f"two tools have the name {twice!r}, expected each name once")
        if self.choice == "required" and not names:
            raise InvalidArgument("tool_choice asks for a call and no tools are given: give `tools`")
        if self.name is not None and self.name not in names:
            raise InvalidArgument(f"tool_choice names {self.name[:100]!r}, which is not among the tools")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(tool["function"]["name"] for tool in self.tools)

    @property
    def open(self) -> bool:
        """Whether an answer may have calls."""
        return bool(self.tools) and self.choice != "none"

    @property
    def schemas(self) -> dict[str, Mapping[str, Any]]:
        """The schema of the parameters by the name of the tool, of all that may be called."""
        given = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in self.tools}
        return given if self.name is None else {self.name: given[self.name]}

    @property
    def constrained(self) -> bool:
        """Whether the form of a call is prescribed: a call is asked for, or a tool is strict."""
        strict = any(tool["function"].get("strict") is True for tool in self.tools)
        return self.open and (strict or self.choice == "required")

    @property
    def shown(self) -> list[dict[str, Any]]:
        """The tools as a chat template gets them: without keys of no value, and without `strict`."""
        return [
            {
                "type": "function",
                "function": {
                    key: value
                    for key, value in tool["function"].items()
                    if value is not None and key != "strict"
                },
            }
            for tool in self.tools
        ]


def require_free(offer: ToolOffer) -> None:
    """Raise `InvalidArgument` where the form of calls is prescribed: an answer may not have it."""
    if offer.constrained:
        raise InvalidArgument(
            "tool_choice required or of one function, and strict tools, prescribe the form of the answer, which is not "
            'supported yet: use tool_choice "auto", and leave strict out'
        )


def require_alone(offer: ToolOffer, form: object) -> None:
    """Raise `InvalidArgument` for tools next to a form of the answer, which leaves no place for a call."""
    if offer.open and form is not None:
        raise InvalidArgument(
            "tools and a form of the answer are both given, and an answer of a form has no calls: leave one of them "
            'out, or use tool_choice "none"'
        )


def offered(tools: object, tool_choice: object = None, parallel: bool = True) -> ToolOffer:
    """Return the offer of tools and a choice as the API of OpenAI has them; None of either is left out.

    Raises `InvalidArgument` for another form, and as `ToolOffer`.
    """
    given = _described(tools)
    if tool_choice in (None, "auto", "none", "required"):
        return ToolOffer(given, tool_choice or "auto", None, parallel)
    kind = tool_choice.get("type") if isinstance(tool_choice, Mapping) else None
    if kind == "function":
        return ToolOffer(given, "required", _name_of(tool_choice), parallel)
    allowed = tool_choice.get("allowed_tools") if isinstance(tool_choice, Mapping) else None
    if (
        kind != "allowed_tools"
        or not isinstance(allowed, Mapping)
        or allowed.get("mode") not in ("auto", "required")
    ):
        raise InvalidArgument(
            f"tool_choice is {str(tool_choice)[:100]}, expected 'none', 'auto', 'required', "
            "{'type': 'function', 'function': {'name': ...}} or {'type': 'allowed_tools', 'allowed_tools': {...}}"
        )
    names = [_name_of(each) for each in allowed.get("tools") or ()]
    unknown = set(names) - {tool["function"]["name"] for tool in given}
    if unknown:
        raise InvalidArgument(f"tool_choice allows {min(unknown)[:100]!r}, which is not among the tools")
    kept = tuple(tool for tool in given if tool["function"]["name"] in names)
    return ToolOffer(kept, allowed["mode"], None, parallel)


def _name_of(choice: object) -> str:
    function = choice.get("function") if isinstance(choice, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise InvalidArgument("tool_choice names no function, expected {'function': {'name': ...}}")
    return name


def _described(tools: object) -> tuple[ToolDescription, ...]:
    if tools is None:
        return ()
    if isinstance(tools, str | Mapping) or not isinstance(tools, Sequence):
        raise InvalidArgument(f"the tools are a {type(tools).__name__}, expected a list of {_TEXT}")
    for index, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, Mapping) else None
        named = isinstance(function, Mapping) and isinstance(function.get("name"), str)
        if not named or tool.get("type", "function") != "function":
            raise InvalidArgument(f"tool {index} is not a function that is described as {_TEXT}")
        parameters = function.get("parameters") if isinstance(function, Mapping) else None
        if parameters is not None and not isinstance(parameters, Mapping):
            raise InvalidArgument(
                f"tool {index}: parameters is a {type(parameters).__name__}, expected a JSON schema"
            )
    return tuple(tools)
