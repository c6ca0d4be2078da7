"""Defines the fields of tools and tool calls in chats, as in the OpenAI API."""

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field

from specruntime.chat.offer import MAX_TOOLS
from specruntime.server.neutral import ClosedBody, Neutral

_KIND = "tools of other kinds are not supported"
ToolName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
MAX_DESCRIPTION = 2**16


class Function(ClosedBody):
    name: ToolName
    description: Annotated[str, Field(max_length=MAX_DESCRIPTION)] | None = None
    parameters: dict[str, Any] | None = None
    """The JSON schema of its arguments; left out, it takes none."""
    strict: bool | None = None


class Tool(ClosedBody):
    type: Annotated[Any, Neutral("function", why=_KIND, null=False)]
    function: Function


class FunctionName(ClosedBody):
    name: ToolName


class NamedChoice(ClosedBody):
    """The function that must be called."""

    type: Annotated[Any, Neutral("function", why=_KIND, null=False)]
    function: FunctionName


class AllowedTools(ClosedBody):
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedChoice], Field(max_length=MAX_TOOLS)]


class AllowedChoice(ClosedBody):
    """Those of the tools that may be called."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


ToolChoice: TypeAlias = Literal["none", "auto", "required"] | NamedChoice | AllowedChoice


class CalledFunction(ClosedBody):
    name: str
    arguments: str
    """JSON text."""
    parsed_arguments: Any = None
    """What the official client's `parse` made of the arguments: not looked at."""


class ToolCall(ClosedBody):
    """A call of an earlier answer."""

    id: str | None = None
    type: Annotated[Any, Neutral("function", why=_KIND)] = None
    function: CalledFunction
    index: int | None = None
    """Left in by clients that put a stream together."""

    def as_mapping(self) -> dict[str, Any]:
        """Return what chat templates take."""
        given = {} if self.id is None else {"id": self.id}
        function = {"name": self.function.name, "arguments": self.function.arguments}
        return {**given, "type": "function", "function": function}
