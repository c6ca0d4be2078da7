"""Reads one JSON object character by character: refuses the first one that cannot belong, and knows where it ends.

`json` needs the whole text. Here arguments are passed on while they grow, so what is passed on must be the beginning of
valid JSON at every moment.
"""

import json
import re
from typing import Final

_SPACE: Final = " \t\n\r"
_HEX: Final = "0123456789abcdefABCDEF"
_WORDS: Final = ("true", "false", "null")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_NUMBER_BEGUN = re.compile(r"-?(0|[1-9][0-9]*)?(\.[0-9]*)?([eE][+-]?[0-9]*)?")
_MOST_NESTED: Final = 200


class NotJson(ValueError):
    """The character cannot stand here."""


class ObjectScanner:
    """Scans an object; its members are kept as text. Fed from its `{` on."""

    def __init__(self) -> None:
        self.members: dict[str, str] = {}  # those that are complete
        self.key: str | None = None  # of the member whose value is being read
        self.done = False
        self._value: list[str] = []  # of that member so far
        self._stack: list[str] = []
        self._expected = "object"
        self._name: list[str] = []  # of a member of the outermost object
        self._word = ""  # a number or literal under way
        self._escape = (
            -1
        )  # in a string: -1 not escaped, 0 after a backslash, else hexadecimal digits that are due

    @property
    def in_object(self) -> bool:
        """Whether the value of `key` has begun, and is an object."""
        return self._value[:1] == ["{"]

    def since(self, count: int) -> str:
        """Return the value of `key` without its first `count` characters."""
        return "".join(self._value[count:])

    def feed(self, character: str) -> None:
        """Raise `NotJson` for a character that cannot follow."""
        if self.done:
            raise NotJson
        if self._expected == "string":
            self._in_string(character)
        elif self._word and character not in ",}]" + _SPACE:
            self._extend_word(character)
        else:
            if self._word:
                self._end_word()
            if character in _SPACE:
                if self.key is not None and len(self._stack) > 1:
                    self._value.append(character)
            else:
                self._structure(character)

    def _structure(self, character: str) -> None:
        expected = self._expected
        if character == '"' and expected in ("key", "key or end"):
            self._keep(character)
            self._open_string(key=True)
        elif character == ":" and expected == "colon":
            self._keep(character)
            self._begin_value()
        elif character == "," and expected == "comma or end":
            self._separate(character)
        elif character in "}]":
            self._close(character)
        elif expected in ("value", "value or end"):
            self._keep(character)
            self._start_value(character)
        elif expected == "object" and character == "{":
            self._push(character)
        else:
            raise NotJson

    def _start_value(self, character: str) -> None:
        if character in "{[":
            self._push(character)
        elif character == '"':
            self._open_string(key=False)
        else:
            self._word = ""
            self._extend_word(character, keep=False)

    def _push(self, character: str) -> None:
        if len(self._stack) >= _MOST_NESTED:
            raise NotJson
        self._stack.append(character)
        self._expected = "key or end" if character == "{" else "value or end"

    def _separate(self, character: str) -> None:
        if len(self._stack) == 1:
            self._expected = "key"
            return
        self._keep(character)
        self._expected = "key" if self._stack[-1] == "{" else "value"

    def _close(self, character: str) -> None:
        opened = "{" if character == "}" else "["
        empty = "key or end" if character == "}" else "value or end"
        if not self._stack or self._stack[-1] != opened or self._expected not in (empty, "comma or end"):
            raise NotJson
        if len(self._stack) > 1:
            self._keep(character)
        self._stack.pop()
        if self._stack:
            self._value_ended()
        else:
            self.done = True

    def _open_string(self, *, key: bool) -> None:
        self._of_key, self._expected = key, "string"
        if key and len(self._stack) == 1:
            self._name = ['"']

    def _in_string(self, character: str) -> None:
        outermost = self._of_key and len(self._stack) == 1
        if outermost:
            self._name.append(character)
        else:
            self._value.append(character)
        if self._escape > 0:
            if character not in _HEX:
                raise NotJson
            self._escape = self._escape - 1 if self._escape > 1 else -1
        elif self._escape == 0:
            if character not in '"\\/bfnrtu':
                raise NotJson
            self._escape = 4 if character == "u" else -1
        elif character == "\\":
            self._escape = 0
        elif character < " ":
            raise NotJson
        elif character == '"':
            self._end_string()

    def _end_string(self) -> None:
        if not self._of_key:
            self._value_ended()
            return
        self._expected = "colon"
        if len(self._stack) == 1:
            self.key = json.loads("".join(self._name))
            if self.key in self.members:
                raise NotJson

    def _begin_value(self) -> None:
        self._expected = "value"
        if len(self._stack) == 1:
            self._value = []

    def _value_ended(self) -> None:
        self._expected = "comma or end"
        if len(self._stack) == 1 and self.key is not None:
            self.members[self.key], self.key = "".join(self._value), None

    def _extend_word(self, character: str, *, keep: bool = True) -> None:
        self._word += character
        numeric = self._word[0] in "-0123456789" and _NUMBER_BEGUN.fullmatch(self._word)
        if not numeric and not any(word.startswith(self._word) for word in _WORDS):
            raise NotJson
        if keep:
            self._keep(character)

    def _end_word(self) -> None:
        if self._word not in _WORDS and not _NUMBER.fullmatch(self._word):
            raise NotJson
        self._word = ""
        self._value_ended()

    def _keep(self, character: str) -> None:
        """Add to the value of a member of the outermost object, the colon before it left out."""
        if self.key is not None and (len(self._stack) > 1 or self._expected == "value"):
            self._value.append(character)
