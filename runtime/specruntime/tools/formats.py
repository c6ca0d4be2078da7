"""The formats in which models write tool calls, and which of them a chat template asks for.

A template shows its model how calls are written, in its instructions and in the calls of earlier turns: the marks it
writes there say which format it is.
"""

import json
import secrets
import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specruntime.tools.parser import Broken, CallParser, Reading

_LONGEST_NAME = 256
_LETTERS = string.ascii_letters + string.digits


class HermesParser(CallParser):
    """`<tool_call>{"name": ..., "arguments": ...}</tool_call>`: Hermes, Qwen, SmolLM3, Granite 4."""

    openers = ("<tool_call>",)
    closers = ("</tool_call>",)

    def _read_call(self, opener: str) -> Reading:
        yield from self._objects()


class GraniteParser(CallParser):
    """`<|tool_call|>[{"name": ..., "arguments": ...}, ...]`: Granite 3, Phi 4 mini."""

    openers = ("<|tool_call|>", "<function_call>")
    closers = ("<|/tool_call|>", "</function_call>")

    def _read_call(self, opener: str) -> Reading:
        yield from self._objects()


class LlamaParser(CallParser):
    """`{"name": ..., "parameters": ...}` as the whole answer, or after `<|python_tag|>`; more of them after `;`."""

    openers = ("<|python_tag|>",)
    closers = (";",)

    def _openers(self) -> tuple[str, ...]:
        return self.openers if self._said and not self._after_call else (*self.openers, "{")

    def _read_call(self, opener: str) -> Reading:
        if opener == "{":
            yield from self._object()
        else:
            yield from self._objects()


class MistralParser(CallParser):
    """`[TOOL_CALLS][{"name": ..., "arguments": ...}, ...]`, or `[TOOL_CALLS]name[ARGS]{...}` for each call."""

    openers = ("[TOOL_CALLS]",)

    @classmethod
    def marks(cls) -> tuple[str, ...]:
        return (*cls.openers, "[ARGS]", "[CALL_ID]")

    def _read_call(self, opener: str) -> Reading:
        first = yield from self._after_space()
        if first in "[{":
            yield from self._list() if first == "[" else self._object()
            return
        name = first
        while not name.endswith(("[", "{")):
            if len(name) > _LONGEST_NAME:
                raise Broken
            name += yield from self._character()
        if name.endswith("["):
            mark = yield from self._until("]", 16)
            if mark == "CALL_ID":
                yield from self._until("[ARGS]", 64)
            elif mark != "ARGS":
                raise Broken
            if (yield from self._after_space()) != "{":
                raise Broken
        yield from self._arguments(self._known(name[:-1].strip()))

    def _new_id(self) -> str:
        """Its templates take ids of nine letters and digits only."""
        return "".join(secrets.choice(_LETTERS) for _ in range(9))


class QwenCoderParser(CallParser):
    """`<tool_call><function=name><parameter=key>value</parameter>...</function></tool_call>`: Qwen3-Coder.

    A value is text; what the tool's schema does not call a string is read as JSON where it is JSON.
    """

    openers = ("<tool_call>", "<function=")
    closers = ("</tool_call>",)

    def _read_call(self, opener: str) -> Reading:
        if opener == "<tool_call>":
            yield from self._expect("<function=")
        name = self._known((yield from self._until(">", _LONGEST_NAME)))
        self._begin(name)
        self._add("{")
        count = 0
        while (yield from self._tag()) == "<parameter=":
            key = yield from self._until(">", _LONGEST_NAME)
            value = yield from self._until("</parameter>")
            text = json.dumps(self._value(name, key, value), ensure_ascii=False)
            self._add(f"{', ' if count else ''}{json.dumps(key, ensure_ascii=False)}: {text}")
            count += 1
        self._add("}")
        self._end()

    def _expect(self, mark: str) -> Reading:
        found = yield from self._after_space()
        while found != mark:
            if not mark.startswith(found):
                raise Broken
            found += yield from self._character()

    def _tag(self) -> Any:
        found = yield from self._after_space()
        while found not in ("<parameter=", "</function>"):
            if not ("<parameter=".startswith(found) or "</function>".startswith(found)):
                raise Broken
            found += yield from self._character()
        return found

    def _value(self, name: str, key: str, text: str) -> Any:
        text = text.removeprefix("\n").removesuffix("\n")
        properties = self._tools[name].get("properties")
        schema = properties.get(key) if isinstance(properties, dict) else None
        if isinstance(schema, dict) and schema.get("type") == "string":
            return text
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text


@dataclass(frozen=True)
class Format:
    """One way to write calls."""

    name: str
    parser: type[CallParser]
    marks: tuple[str, ...]  # a template that has any of them asks for this format
    call: tuple[str, str] = ("", "")  # what stands before and after the JSON of one call
    arguments: str = "arguments"  # the key of the arguments in that JSON
    several: tuple[str, str, str] | None = (
        None  # around and between the calls of one turn, if they share one mark
    )

    def write(self, calls: Sequence[tuple[str, dict[str, Any]]]) -> str:
        """Return names and arguments as the model would have written them."""
        written = [
            json.dumps({"name": name, self.arguments: given}, ensure_ascii=False) for name, given in calls
        ]
        if self.several is not None:
            before, between, after = self.several
            return before + between.join(written) + after
        before, after = self.call
        return "\n".join(f"{before}{text}{after}" for text in written)


FORMATS = (
    Format("mistral", MistralParser, ("[TOOL_CALLS]",), several=("[TOOL_CALLS][", ", ", "]")),
    Format("granite", GraniteParser, ("<|tool_call|>",), several=("<|tool_call|>[", ", ", "]")),
    Format("granite", GraniteParser, ("<function_call>",), ("<function_call> ", "")),
    Format("qwen-coder", QwenCoderParser, ("<function=",)),
    Format("hermes", HermesParser, ("<tool_call>",), ("<tool_call>\n", "\n</tool_call>")),
    Format(
        "llama",
        LlamaParser,
        ("<|python_tag|>", '{"name": function name, "parameters"'),
        arguments="parameters",
    ),
)


def format_of(template: str) -> Format | None:
    """Return the format that a chat template asks for; None where it has no mark of any."""
    return next((each for each in FORMATS if any(mark in template for mark in each.marks)), None)
