"""Takes the text of an answer apart, while it grows: reasoning, content, tool calls.

The reasoning comes first, if there is one; what follows it is content and calls.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from specruntime.tools.events import Call, Content, Event, gather
from specruntime.tools.parser import CallParser, Tools

_SPACE = " \t\r\n"


@dataclass(frozen=True, slots=True)
class Reasoned:
    """Text of the reasoning, without its marks."""

    text: str


Part = Reasoned | Event


@dataclass(frozen=True)
class ReplyStyle:
    """How the answers to one prompt are written."""

    marks: tuple[str, str] | None = None  # around the reasoning; None: answers have no reasoning
    begun: bool = False  # whether the prompt ends inside the reasoning
    parser: type[CallParser] | None = None  # None: no calls
    tools: Tools | None = None
    parallel: bool = True

    @property
    def plain(self) -> bool:
        """Whether an answer is content and nothing else."""
        return self.marks is None and self.parser is None


@dataclass(frozen=True, slots=True)
class Message:
    """A whole answer."""

    content: str
    reasoning: str | None = None  # None: there was none
    calls: tuple[Call, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """As a message of the OpenAI API, which can be sent back, without what it does not have."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.calls:
            message |= {
                "content": self.content or None,
                "tool_calls": [call.as_dict() for call in self.calls],
            }
        if self.reasoning is not None:
            message["reasoning_content"] = self.reasoning
        return message


class Reply:
    """One answer. Feed it the text as it comes, then `finish` it."""

    def __init__(self, style: ReplyStyle) -> None:
        self._parser = (
            None if style.parser is None else style.parser(style.tools or {}, parallel=style.parallel)
        )
        self._start, self._end = style.marks or ("", "")
        self._phase = "after" if style.marks is None else "inside" if style.begun else "before"
        self._held = ""
        self._said = False  # any of the reasoning yet
        self._trim = False  # whether white space is dropped that follows the end of the reasoning

    def push(self, text: str) -> list[Part]:
        """Return what the text makes certain."""
        parts: list[Part] = []
        if self._phase == "before":
            self._held += text
            begun = self._held.lstrip(_SPACE)
            if begun.startswith(self._start):
                self._phase, self._held, text = "inside", "", begun[len(self._start) :]
            elif self._start.startswith(begun):
                return parts
            else:
                self._phase, self._held, text = "after", "", self._held
        if self._phase == "inside":
            self._held += text
            text = self._reason(parts)
        if self._phase == "after" and text:
            parts += self._follow(text)
        return parts

    def finish(self) -> list[Part]:
        """Return what is held back. The answer has ended."""
        held, self._held = self._held, ""
        parts: list[Part] = []
        if self._phase == "inside":
            self._reasoned(parts, held)
        elif held:
            parts += self._follow(held)
        return parts + (self._parser.finish() if self._parser is not None else [])

    def _reason(self, parts: list[Part]) -> str:
        """Give the reasoning in what is held, but what may be its end; return what follows the end."""
        if not self._said:
            self._held = self._held.lstrip(_SPACE)
        text, mark, rest = self._held.partition(self._end)
        if mark:
            self._phase, self._held, self._trim = "after", "", True
            self._reasoned(parts, text.rstrip(_SPACE))
            return rest
        kept = next((size for size in range(len(self._end) - 1, 0, -1) if text.endswith(self._end[:size])), 0)
        sure = text[: len(text) - kept].rstrip(_SPACE)  # white space before the end mark is not reasoning
        self._reasoned(parts, sure)
        self._held = self._held[len(sure) :]
        return ""

    def _reasoned(self, parts: list[Part], text: str) -> None:
        if text:
            self._said = True
            parts.append(Reasoned(text))

    def _follow(self, text: str) -> list[Part]:
        if self._trim:
            text = text.lstrip(_SPACE)
            if not text:
                return []
            self._trim = False
        return list(self._parser.push(text)) if self._parser is not None else [Content(text)]


def message_of(style: ReplyStyle, text: str) -> Message:
    """Return a whole answer, taken apart."""
    reply = Reply(style)
    return whole_message([*reply.push(text), *reply.finish()])


def whole_message(parts: Iterable[Part]) -> Message:
    """Return the message that the parts of a whole answer make up."""
    reasoning: list[str] = []
    events: list[Event] = []
    for part in parts:
        if isinstance(part, Reasoned):
            reasoning.append(part.text)
        else:
            events.append(part)
    content, calls = gather(events)
    return Message(content, "".join(reasoning) if reasoning else None, tuple(calls))
