"""A server whose model says what a test dictates, over a tokenizer of bytes and a chat template of the test's own."""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from specruntime.generation import Delta
from specruntime.server.settings import Settings
from specruntime.serving import Scheduler, Turn, Work
from specruntime.stopping import StopChecker
from specruntime.text.chat_template import ChatTemplate
from specruntime.text.codec import TextCodec
from specruntime.verify import Round
from tests.runtime.server.conftest import Running, serving

SPECIAL = ("<|end|>", "[TOOL_CALLS]", "[ARGS]", "<|tool_call|>", "<|python_tag|>", "[THINK]", "[/THINK]")


def codec_with(template: str) -> TextCodec:
    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(symbols)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    return TextCodec(tokenizer, ChatTemplate(template, {}))


@dataclass
class Dictated:
    """A `Stepper` that answers with the next of `answers`, `size` tokens a round."""

    codec: TextCodec
    size: int = 1
    slots: int = 2
    capacity: int = 4096
    answers: deque[str] = field(default_factory=deque)
    works: list[Work] = field(default_factory=list)
    at_work: dict[int, Iterator[Delta]] = field(default_factory=dict)

    def check(self, work: Work) -> Work:
        return work

    def choose(self, free: Sequence[int], work: Work) -> int:
        return free[0]

    def admit(self, slot: int, work: Work) -> None:
        self.works.append(work)
        self.at_work[slot] = self._deltas(work, self.answers.popleft())

    def step(self) -> Iterator[Turn]:
        for slot, deltas in list(self.at_work.items()):
            delta = next(deltas)
            round = Round(delta.tokens, 0, 0, 1, None, corrected=False)
            yield Turn(slot, delta, round)

    def evict(self, slot: int) -> None:
        del self.at_work[slot]

    def rows(self) -> int:
        return 0

    def close(self) -> None: ...

    def prompt(self) -> str:
        """The text of the last prompt, with its special tokens."""
        names = {token: name for name, token in self._ids().items()}
        parts: list[str] = []
        ids: list[int] = []
        for token in self.works[-1].prompt.tolist():
            if token in names:
                parts += [self.codec.decode(ids), names[token]]
                ids = []
            else:
                ids.append(token)
        return "".join([*parts, self.codec.decode(ids)])

    def _ids(self) -> dict[str, int]:
        return {name: token for token, name in self.codec.special_tokens(" ".join(SPECIAL)).items()}

    def _deltas(self, work: Work, text: str) -> Iterator[Delta]:
        tokens = self.codec.encode(text + "<|end|>", add_special_tokens=False)
        stops = StopChecker(work.params, (self._ids()["<|end|>"],))
        decoder = self.codec.stream(work.prompt.tolist(), work.shown)
        for start in range(0, len(tokens), self.size):
            shown, kept, reason = "", [], None
            for token in tokens[start : start + self.size]:
                piece = "" if stops.is_end(token) else decoder.push((token,))
                verdict = stops.feed(token, piece + (decoder.flush() if stops.is_last(token) else ""))
                shown, reason = shown + verdict.text, verdict.finish_reason
                kept.append(token)
                if reason is not None:
                    break
            yield Delta(shown, tuple(kept), None, reason)


@contextmanager
def dictated(template: str, *answers: str, size: int = 1) -> Iterator[tuple[Running, Dictated]]:
    """A server that gives these answers in turn."""
    codec = codec_with(template)
    stepper = Dictated(codec, size, answers=deque(answers))
    with Scheduler(stepper, queue_limit=64) as scheduler:
        bundle: Any = SimpleNamespace(tokenizer=codec)
        with serving(scheduler, bundle, codec, stepper.capacity, Settings("dictated")) as server:
            yield server, stepper
