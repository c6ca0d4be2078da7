"""A bundle's tokenizer as llguidance takes it, and where one answer is in a grammar, as the loop asks it."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specruntime.constraints.grammars import library
from specruntime.errors import ConstraintInvalid, DeadEnd
from specruntime.text.codec import TextCodec


def library_tokenizer(codec: TextCodec, vocab: int, eos_token_ids: Sequence[int]) -> Any:
    """Return the library's tokenizer for a model of `vocab` tokens, some of which the tokenizer may not have.

    The library reads from the file which bytes a token stands for, and how a forced text is tokenized. It can where
    tokens stand for bytes whatever they follow: byte-level tokenizers, and those that fall back to bytes. Raises
    `ConstraintInvalid` for any other.
    """
    if not codec.writes_bytes:
        raise ConstraintInvalid(
            "this bundle's tokenizer cannot be used for structured_outputs, expected a byte-level tokenizer or one "
            "that falls back to bytes"
        )
    ends = [token for token in eos_token_ids if token < vocab] or None
    document = json.loads(codec.to_json())
    document["truncation"] = document["padding"] = None
    try:
        return library().LLTokenizer(json.dumps(document), n_vocab=max(vocab, codec.size), eos_token=ends)
    except ValueError as error:
        raise ConstraintInvalid(
            f"this bundle's tokenizer cannot be used for structured_outputs: {error}"
        ) from error


class LibraryMatcher:
    """A `Matcher`. Owns the library's matcher; never shows it an end token."""

    def __init__(self, start: Any, vocab: int, ends: NDArray[np.int32]) -> None:
        """`start`: the library's matcher where the answer begins; copied. `ends` [words]: its own end tokens."""
        self._start = start
        self._matcher = start.deep_copy()
        self._words = (vocab + 31) // 32
        self._texts = ~ends
        self._tokens: list[int] = []

    def words(self) -> NDArray[np.int32]:
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.int32)[: self._words]
        self._require_sound()
        return bits & self._texts

    def complete(self) -> bool:
        return bool(self._matcher.is_accepting())

    def advance(self, token: int) -> bool:
        moved = bool(self._matcher.try_consume_tokens([token]) == 1)
        self._require_sound()
        if moved:
            self._tokens.append(token)
        return moved

    def back(self, count: int) -> None:
        if not count:
            return
        del self._tokens[len(self._tokens) - count :]
        if not self._matcher.rollback(count) or self._matcher.is_error():
            self._replay()

    def _require_sound(self) -> None:
        """The library never leaves a failure: another copy goes on from where the answer was."""
        if self._matcher.is_error():
            problem = " ".join(str(self._matcher.get_error()).split())[:200]
            self._replay()
            raise DeadEnd(f"the form of the answer is too complex to go on: {problem}")

    def _replay(self) -> None:
        self._matcher = self._start.deep_copy()
        self._matcher.consume_tokens(self._tokens)
