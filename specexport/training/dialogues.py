"""Prompts as token ids and the target's answers to them: the text a draft learns from, one JSON object a line.

The file only grows, so that an interrupted run continues where it stopped.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specexport.errors import TrainingRefused

HELD_OUT_PER_MILLE = 25


@dataclass(frozen=True)
class Dialogue:
    """`greedy`: every answer id is the target's most likely one; else they were drawn."""

    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]
    greedy: bool

    @property
    def ids(self) -> tuple[int, ...]:
        return self.prompt_ids + self.answer_ids

    @property
    def held_out(self) -> bool:
        """Never trained on. Decided by the prompt alone, so that it stays so when a file grows or is reordered."""
        return is_held_out(self.prompt_ids)


def is_held_out(prompt_ids: Sequence[int]) -> bool:
    """True for about 1 prompt in 40."""
    digest = hashlib.sha256(json.dumps(list(prompt_ids)).encode()).digest()
    return int.from_bytes(digest[:8], "big") % 1000 < HELD_OUT_PER_MILLE


def read_dialogues(path: Path) -> Iterator[Dialogue]:
    """What `append_dialogues` wrote; a last line that was cut short by an interruption is dropped from the file.

    Raises `TrainingRefused` for any other line that is not a dialogue.
    """
    if not path.is_file():
        return
    _drop_half_line(path)
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                found = json.loads(line)
                yield Dialogue(_ids(found["prompt_ids"]), _ids(found["answer_ids"]), bool(found["greedy"]))
            except (ValueError, KeyError, TypeError):
                raise TrainingRefused(
                    f"{path}:{number}: found {line[:60]!r}, expected an object with prompt_ids, answer_ids and "
                    "greedy, as `specexport train` writes it; remove the line"
                ) from None


def append_dialogues(path: Path, dialogues: Iterable[Dialogue]) -> None:
    with path.open("a", encoding="utf-8") as stream:
        for dialogue in dialogues:
            record = {
                "prompt_ids": dialogue.prompt_ids,
                "answer_ids": dialogue.answer_ids,
                "greedy": dialogue.greedy,
            }
            stream.write(json.dumps(record, separators=(",", ":")) + "\n")


def _ids(found: Any) -> tuple[int, ...]:
    if not found or any(type(index) is not int or index < 0 for index in found):
        raise ValueError
    return tuple(found)


def _drop_half_line(path: Path) -> None:
    data = path.read_bytes()
    if data and not data.endswith(b"\n"):
        with path.open("r+b") as stream:
            stream.truncate(data.rfind(b"\n") + 1)
