"""What a parser of tool calls finds in an answer: content, and calls whose arguments grow."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Content:
    """Text of the answer that is not part of a call."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    """A call of one of the offered tools; its arguments follow."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """More of the JSON text of a call's arguments."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnded:
    """The arguments of the call are a whole JSON object."""

    index: int


@dataclass(frozen=True, slots=True)
class CallBroken:
    """A call that had begun is not well formed, or was cut off; `text` is what the answer has of it."""

    index: int
    text: str


Event = Content | CallBegun | Arguments | CallEnded | CallBroken


@dataclass(frozen=True, slots=True)
class Call:
    """A whole call; `arguments` is JSON text, as the model wrote it."""

    id: str
    name: str
    arguments: str

    def as_dict(self) -> dict[str, Any]:
        """As in a message of the OpenAI API."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


def gather(events: list[Event]) -> tuple[str, list[Call]]:
    """Return the content and the calls of a whole answer. A broken call is content."""
    content: list[str] = []
    begun: dict[int, CallBegun] = {}
    arguments: dict[int, list[str]] = {}
    calls: list[Call] = []
    for event in events:
        match event:
            case Content(text):
                content.append(text)
            case CallBegun(index):
                begun[index], arguments[index] = event, []
            case Arguments(index, text):
                arguments[index].append(text)
            case CallEnded(index):
                calls.append(Call(begun[index].id, begun[index].name, "".join(arguments[index])))
            case CallBroken(_, text):
                content.append(text)
    return "".join(content), calls
