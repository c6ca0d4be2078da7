"""The machinery of every parser of tool calls: finds where a call begins, and turns text into events as it arrives.

A parser is a generator that takes one character at a time, so a split of the text anywhere changes nothing. Text that
may still become a call is held back; a call that turns out not to be one is given back as content.
"""

import json
import secrets
from collections import deque
from collections.abc import Generator, Mapping
from typing import Any

from specruntime.tools.events import Arguments, CallBegun, CallBroken, CallEnded, Content, Event
from specruntime.tools.json_scanner import NotJson, ObjectScanner

Reading = Generator[None, str, None]
Character = Generator[None, str, str]
Tools = Mapping[str, Mapping[str, Any]]
"""The schema of the parameters of each tool that may be called, by the tool's name."""
END = ""  # what a parser gets after the last character
_SPACE = " \t\r\n"
_ARGUMENTS = ("arguments", "parameters")


class Broken(Exception):
    """What has been read is not a call."""


class CallParser:
    """Parses one answer. A format says how its calls are marked, and reads one of them (`_read_call`)."""

    openers: tuple[str, ...] = ()  # what a call begins with
    closers: tuple[str, ...] = ()  # what may follow a call; not content

    @classmethod
    def marks(cls) -> tuple[str, ...]:
        """What it looks for in the text."""
        return (*cls.openers, *cls.closers)

    def __init__(self, tools: Tools, *, parallel: bool = True) -> None:
        """Without `parallel` the first call is the only one, and nothing after it is given."""
        self.calls = 0  # ended so far
        self._tools, self._parallel = tools, parallel
        self._events: list[Event] = []
        self._waiting: deque[str] = deque()
        self._read: list[str] = []  # since the opener of the call, or the end of the call before
        self._begun: int | None = None
        self._grown: list[str] = []  # arguments that are not in an event yet
        self._spoken: list[str] = []  # content that is not in an event yet
        self._index = 0  # of the next call that begins
        self._cut = False  # whether the answer ended where more was expected
        self._said = False  # any content yet
        self._after_call = False
        self._machine = self._run()
        next(self._machine)

    def push(self, text: str) -> list[Event]:
        """Return what the text makes certain."""
        self._waiting.extend(text)
        self._drain()
        return self._taken()

    def finish(self) -> list[Event]:
        """Return what is held back. The answer has ended."""
        while True:
            self._drain()
            self._machine.send(END)
            if not self._waiting:
                return self._taken()

    def _drain(self) -> None:
        while self._waiting:
            self._machine.send(self._waiting.popleft())

    def _taken(self) -> list[Event]:
        self._emit()
        events, self._events = self._events, []
        return events

    # What formats use.

    def _read_call(self, opener: str) -> Reading:
        """Read one call or several after their opener. Raises `Broken`."""
        raise NotImplementedError

    def _openers(self) -> tuple[str, ...]:
        return self.openers

    def _character(self) -> Character:
        """Return the next character; raises `Broken` at the end."""
        character = yield
        self._cut = character == END
        if self._cut:
            raise Broken
        self._read.append(character)
        return character

    def _after_space(self) -> Character:
        """Return the next character that is not white space."""
        while True:
            character = yield from self._character()
            if character not in _SPACE:
                return character

    def _until(self, marker: str, longest: int | None = None) -> Character:
        """Return the text before a marker. Raises `Broken` where it is longer than `longest`."""
        text = ""
        while not text.endswith(marker):
            text += yield from self._character()
            if longest is not None and len(text) > longest + len(marker):
                raise Broken
        return text[: len(text) - len(marker)]

    def _objects(self) -> Reading:
        """Read an object that is a call, or a list of them."""
        first = yield from self._after_space()
        if first == "{":
            yield from self._object()
        elif first == "[":
            yield from self._list()
        else:
            raise Broken

    def _list(self) -> Reading:
        while True:
            if (yield from self._after_space()) != "{":
                raise Broken
            yield from self._object()
            following = yield from self._after_space()
            if following == "]":
                self._read.clear()
                return
            if following != ",":
                raise Broken

    def _object(self) -> Reading:
        """Read the rest of an object with the name of a tool and its arguments."""
        scanner, name, sent = ObjectScanner(), None, 0
        scanner.feed("{")
        while not scanner.done:
            character = yield from self._character()
            try:
                scanner.feed(character)
            except NotJson:
                raise Broken from None
            if name is None and "name" in scanner.members:
                name = self._known(json.loads(scanner.members["name"]))
            if name is not None and scanner.key in _ARGUMENTS and scanner.in_object:
                sent += self._grow(name, scanner.since(sent))
        if name is None:
            raise Broken
        given = [scanner.members[key] for key in _ARGUMENTS if key in scanner.members]
        if len(given) > 1:
            raise Broken
        text = _object_text(given[0] if given else "{}")
        self._grow(name, text[sent:])
        self._end()

    def _arguments(self, name: str) -> Reading:
        """Read the rest of an object that is the arguments of a call."""
        scanner, text = ObjectScanner(), "{"
        scanner.feed(text)
        self._begin(name)
        self._add(text)
        while not scanner.done:
            character = yield from self._character()
            try:
                scanner.feed(character)
            except NotJson:
                raise Broken from None
            self._add(character)
        self._end()

    def _known(self, name: object) -> str:
        """Return the name of a tool that may be called; raises `Broken` for another one."""
        if not isinstance(name, str) or name not in self._tools:
            raise Broken
        return name

    def _grow(self, name: str, text: str) -> int:
        """Give more of the arguments, with which the call begins; return how much."""
        if self._begun is None:
            self._begin(name)
        self._add(text)
        return len(text)

    def _begin(self, name: str) -> None:
        if not self._may_call:
            raise Broken
        self._begun, self._index = self._index, self._index + 1
        self._emit(CallBegun(self._begun, self._new_id(), name))

    def _add(self, text: str) -> None:
        self._grown.append(text)

    def _emit(self, event: Event | None = None) -> None:
        """Add what arguments have grown by, then an event."""
        if self._begun is not None and (text := "".join(self._grown)):
            self._events.append(Arguments(self._begun, text))
            self._grown = []
        if self._spoken:
            self._events.append(Content("".join(self._spoken)))
            self._spoken = []
        if event is not None:
            self._events.append(event)

    def _end(self) -> None:
        assert self._begun is not None
        self._emit(CallEnded(self._begun))
        self._begun, self._after_call = None, True
        self.calls += 1
        self._read.clear()

    def _new_id(self) -> str:
        return f"call_{secrets.token_hex(12)}"

    # How content and calls follow each other.

    def _run(self) -> Reading:
        while True:
            opener = yield from self._content()
            try:
                yield from self._read_call(opener)
            except Broken:
                self._give_back(opener)

    def _content(self) -> Character:
        """Give content up to an opener, which is returned. White space next to a call is not content."""
        held = ""
        while True:
            character = yield
            if character == END:
                if held and not (self._after_call and held.isspace()):
                    self._say(held)
                held = ""
                continue
            held += character
            marker = held.lstrip(_SPACE)
            if marker in self._openers() and self._may_call:
                self._read = list(held)
                return marker
            if self._after_call and marker in self.closers:
                held = ""
                continue
            held = self._release(held)

    @property
    def _may_call(self) -> bool:
        return self._parallel or not self.calls

    def _release(self, held: str) -> str:
        """Give what cannot belong to a marker; return the rest."""
        markers = (*self._openers(), *(self.closers if self._after_call else ()))
        start = len(held) - len(held.lstrip(_SPACE))
        if start == len(held) or any(marker.startswith(held[start:]) for marker in markers):
            return held
        self._say(held[:-1])
        last = held[-1]
        if last not in _SPACE and not any(marker.startswith(last) for marker in self._openers()):
            self._say(last)
            return ""
        return last

    def _say(self, text: str) -> None:
        self._said, self._after_call = True, False
        if not self._may_call:
            return
        if text:
            self._spoken.append(text)

    def _give_back(self, opener: str) -> None:
        """Make content of what is not a call; what follows the opener may be one."""
        text, self._read = "".join(self._read), []
        if self._begun is not None:
            end = len(text) if self._cut else len(text) - 1  # the character that cannot belong to the call
            self._emit(CallBroken(self._begun, text[:end]))
            self._begun, self._said, self._after_call = None, True, False
            self._waiting.extendleft(text[end:])
            return
        marked = text.lstrip(_SPACE)
        kept = len(text) - len(marked) + (len(opener) if marked.startswith(opener) else min(1, len(marked)))
        self._say(text[:kept])
        self._waiting.extendleft(reversed(text[kept:]))


def _object_text(value: str) -> str:
    """Return the arguments as the text of an object; some models write that text as a string."""
    try:
        text = json.loads(value) if value.startswith('"') else value
        if isinstance(json.loads(text), dict):
            return str(text)
    except (ValueError, TypeError, RecursionError):
        pass
    raise Broken
