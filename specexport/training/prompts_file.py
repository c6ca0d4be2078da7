"""The file of training prompts, and what may not be among them. Imports neither torch nor transformers.

It holds one `{"prompt": text}` per line, as `specexport bench`'s files do, or a conversation with its answer:
`{"messages": [{"role", "content"}, ...]}`, the last of them the assistant's.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from os import SEEK_END
from pathlib import Path
from typing import Any, BinaryIO

from specexport.errors import TrainingRefused
from specexport.text_lines import read_lines

OVERLAP_WORDS = 13  # in a row: the usual measure of contamination


@dataclass(frozen=True)
class Conversation:
    """Messages with `role` and `content`, the answer last; `place` is their file and line."""

    place: str
    messages: tuple[dict[str, Any], ...]


def read_prompts(path: Path, option: str = "--prompts") -> list[str]:
    """Texts in the file's order, repeated ones once. Raises `TrainingRefused` naming the `option`, file and line."""
    return list(
        dict.fromkeys(str(_parse(place, line, answered=False)) for place, line in _lines(path, option))
    )


def _lines(path: Path, option: str) -> list[tuple[str, str]]:
    """Return the lines that hold something, each with its place as messages name it."""
    try:
        lines = read_lines(path)
    except ValueError as error:
        raise TrainingRefused(
            f"{option}: {path} cannot be read: {error}; write prompts with `specexport write-prompts`"
        ) from None
    found = [(f"{path}:{number}", line) for number, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise TrainingRefused(f'{option}: {path} holds none, expected {{"prompt": text}} on each line')
    return found


def read_training_text(path: Path, option: str = "--prompts") -> tuple[list[str], list[Conversation]]:
    """Return the prompts of a file, and its conversations, each once and in the file's order. Raises as
    `read_prompts`.
    """
    prompts: dict[str, None] = {}
    conversations: dict[str, Conversation] = {}
    for place, line in _lines(path, option):
        found = _parse(place, line, answered=True)
        if isinstance(found, str):
            prompts[found] = None
        else:
            conversations.setdefault(json.dumps(found.messages), found)
    return list(prompts), list(conversations.values())


def append_prompts(path: Path, prompts: Iterable[str]) -> None:
    with path.open("a+b") as stream:
        if stream.tell() and not _ends_line(stream):
            stream.write(b"\n")
        stream.writelines(
            (json.dumps({"prompt": prompt}, ensure_ascii=False) + "\n").encode() for prompt in prompts
        )


def _ends_line(stream: BinaryIO) -> bool:
    stream.seek(-1, SEEK_END)
    return stream.read(1) == b"\n"


class Excluded:
    """Prompts that must not be trained on, and what is too near to them."""

    def __init__(self, prompts: Sequence[str]) -> None:
        self._whole = {tuple(_words(prompt)) for prompt in prompts}
        self._runs = {run for prompt in prompts for run in _runs(_words(prompt))}

    def __contains__(self, prompt: str) -> bool:
        """Return whether it has the same words, or `OVERLAP_WORDS` of them in a row; case and punctuation do
        not count.
        """
        words = _words(prompt)
        return tuple(words) in self._whole or any(run in self._runs for run in _runs(words))


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def _runs(words: Sequence[str]) -> Iterator[tuple[str, ...]]:
    return (tuple(words[first : first + OVERLAP_WORDS]) for first in range(len(words) - OVERLAP_WORDS + 1))


def _parse(place: str, line: str, *, answered: bool) -> str | Conversation:
    """Return the prompt of a line, or with `answered` its conversation."""
    try:
        found = json.loads(line)
        if answered and "messages" in found:
            if "prompt" in found:
                raise TrainingRefused(f"{place}: found both prompt and messages, expected one of them")
            return _conversation(place, found["messages"])
        prompt = found["prompt"]
    except (ValueError, KeyError, TypeError):
        forms = '{"prompt": text}' + (' or {"messages": [...]}' if answered else "")
        raise TrainingRefused(f"{place}: found {line[:60]!r}, expected {forms}") from None
    if not isinstance(prompt, str) or not prompt.strip():
        raise TrainingRefused(f"{place}: the prompt is {prompt!r}, expected a text that is not empty")
    return prompt


def _conversation(place: str, found: Any) -> Conversation:
    if not isinstance(found, list) or not all(
        isinstance(message, dict) and isinstance(message.get("role"), str) for message in found
    ):
        raise TrainingRefused(
            f'{place}: messages is {found!r:.60}, expected [{{"role": ..., "content": ...}}, ...]'
        )
    last = found[-1] if found else {}
    content = last.get("content")
    if len(found) < 2 or last["role"] != "assistant" or not isinstance(content, str) or not content.strip():
        raise TrainingRefused(
            f"{place}: the messages end with {last!r:.60}, expected a question and then the answer, a message of role "
            "assistant with a text"
        )
    for number, message in enumerate(found, 1):
        # Templates take texts, and some take lists of parts.
        if not isinstance(message.get("content"), str | list):
            raise TrainingRefused(
                f"{place}: message {number} is {message!r:.60}, expected a role and a content, a text"
            )
    return Conversation(place, tuple(found))
