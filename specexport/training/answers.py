"""The target's answers to prompts, decoded here in PyTorch; what was answered before is not asked again."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from specexport.errors import TrainingRefused
from specexport.training.decoding import Request, SlotDecoder

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
    """Return True for about 1 prompt in 40."""
    digest = hashlib.sha256(json.dumps(list(prompt_ids)).encode()).digest()
    return int.from_bytes(digest[:8], "big") % 1000 < HELD_OUT_PER_MILLE


def read_dialogues(path: Path) -> Iterator[Dialogue]:
    """Yield what `append_dialogues` wrote; a last line that was cut short by an interruption is dropped from the file.

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


_DRAWN_OF_4 = 1  # answers that are drawn, of four: greedy ones alone never show what a warm answer looks like
_TEMPERATURE = 0.7


@dataclass(frozen=True)
class AnswerProgress:
    """`answered` of `asked` prompts have their answer. This run has written `tokens` of about `expected` tokens."""

    answered: int
    asked: int
    tokens: int = 0
    expected: int = 0


def answer_prompts(
    model: PreTrainedModel,
    prompts: Sequence[tuple[int, ...]],
    path: Path,
    *,
    end_ids: Sequence[int],
    answer_tokens: int,
    seed: int = 0,
    slots: int = 96,
    progress: Callable[[AnswerProgress], None] = lambda progress: None,
) -> list[Dialogue]:
    """Return the dialogues of `prompts` in `path`, which gets those it lacks. Held-out prompts are answered greedily.

    Each answer is as if all had been given now: one that is longer than `answer_tokens` is cut, a prompt whose answer a
    smaller limit had cut is answered again, and its last answer counts. `progress` is called after each step.
    """
    wanted = set(prompts)
    known = {
        dialogue.prompt_ids
        for dialogue in read_dialogues(path)
        if len(dialogue.answer_ids) >= answer_tokens or dialogue.answer_ids[-1] in end_ids
    }
    missing = [prompt for prompt in prompts if prompt not in known]
    answered = len(wanted & known)
    progress(AnswerProgress(answered, len(wanted)))
    if missing:
        counted = _Counted(answered, len(wanted), len(missing), answer_tokens, progress)
        decoder = SlotDecoder(
            model,
            slots=min(slots, len(missing)),
            capacity=max(map(len, missing)) + answer_tokens,
            end_ids=tuple(end_ids),
            seed=seed,
        )
        for request, ids in decoder.decode(_requests(missing, answer_tokens), counted.step):
            append_dialogues(path, [Dialogue(request.prompt_ids, ids, request.temperature == 0)])
            counted.finish(len(ids))
    last = {dialogue.prompt_ids: dialogue for dialogue in read_dialogues(path)}
    return [
        replace(dialogue, answer_ids=dialogue.answer_ids[:answer_tokens])
        for prompt, dialogue in last.items()
        if prompt in wanted
    ]


class _Counted:
    """What a run has written, and what it has still to write by the mean length of the answers that ended."""

    def __init__(
        self, answered: int, asked: int, missing: int, longest: int, tell: Callable[[AnswerProgress], None]
    ) -> None:
        self._before, self._asked, self._missing = answered, asked, missing
        self._longest, self._tell = longest, tell
        self._tokens = self._ended = self._ended_tokens = 0

    def step(self, tokens: int) -> None:
        self._tokens += tokens
        self._report()

    def finish(self, tokens: int) -> None:
        self._ended += 1
        self._ended_tokens += tokens
        self._report()

    def _report(self) -> None:
        mean = self._ended_tokens / self._ended if self._ended else self._longest
        expected = max(self._tokens, round(mean * self._missing))
        self._tell(AnswerProgress(self._before + self._ended, self._asked, self._tokens, expected))


def _requests(prompts: Sequence[tuple[int, ...]], answer_tokens: int) -> Iterator[Request]:
    for index, prompt in enumerate(prompts):
        drawn = index % 4 < _DRAWN_OF_4 and not is_held_out(prompt)
        yield Request(prompt, _TEMPERATURE if drawn else 0.0, answer_tokens)
