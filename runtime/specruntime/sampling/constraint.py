"""What may follow in a constrained answer, along any path of tokens that are not committed yet.

The one seam between the loop and grammars: a `Matcher` knows the grammar and moves along one line of tokens; a
`Constraint` asks it about every row of a window, along the row's own path, and remembers the answers. The mask of a row
is a function of the tokens of the answer before it and of nothing else. Knows nothing of windows, drafts or logits
that are not handed in.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from specruntime.errors import DeadEnd, InvalidArgument
from specruntime.sampling.params import SamplingParams

_FEW = 256  # allowed tokens up to which only they are looked at
_NEVER = np.float32(-np.inf)


class Matcher(Protocol):
    """Where one answer is in its grammar. End tokens are not its business: it never sees one."""

    def words(self) -> NDArray[np.int32]:
        """[ceil(vocab / 32)] what may follow: bit b of word w is token 32 * w + b. May be a view.

        Raises `DeadEnd` where finding out takes more than the limits allow.
        """
        ...

    def complete(self) -> bool:
        """Whether the answer may end here."""
        ...

    def advance(self, token: int) -> bool:
        """Move past a token; False, where it was, for one that cannot follow."""
        ...

    def back(self, count: int) -> None:
        """Take the last `count` tokens back."""
        ...


class Mask:
    """The tokens that may follow."""

    __slots__ = ("_allowed", "_ids", "_vocab", "_words", "count")

    def __init__(self, words: NDArray[np.int32], vocab: int) -> None:
        """`words` [ceil(vocab / 32)] as of `Matcher.words`; kept, not copied."""
        # Unsigned: of a negative number NumPy counts the bits of its magnitude.
        self.count = int(np.bitwise_count(words.view(np.uint32)).sum())
        self._words = words
        self._vocab = vocab
        self._allowed: NDArray[np.bool_] | None = None
        self._ids: NDArray[np.int64] | None = None

    @property
    def allowed(self) -> NDArray[np.bool_]:
        """[vocab]"""
        if self._allowed is None:
            bits = np.unpackbits(self._words.view(np.uint8), bitorder="little", count=self._vocab)
            self._allowed = bits.view(np.bool_)
        return self._allowed

    @property
    def ids(self) -> NDArray[np.int64]:
        """[count] ascending."""
        if self._ids is None:
            self._ids = np.flatnonzero(self.allowed)
        return self._ids

    @property
    def only(self) -> int | None:
        """The token that must follow, where there is one alone."""
        return int(self.ids[0]) if self.count == 1 else None

    def __contains__(self, token: int) -> bool:
        return 0 <= token < self._vocab and bool(self._words[token >> 5] >> (token & 31) & 1)

    def of(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of some ids [...] may follow."""
        allowed: NDArray[np.bool_] = (self._words[ids >> 5] >> (ids & 31) & 1).astype(np.bool_)
        return allowed

    def masked(self, row: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the row [vocab] with -inf for all that may not follow: a copy."""
        if self.count <= _FEW:
            few = np.full_like(row, _NEVER)
            few[self.ids] = row[self.ids]
            return few
        return np.where(self.allowed, row, _NEVER)


class Constraint:
    """The masks of one answer. A *path* is what follows the committed tokens. Not thread-safe.

    An end token may follow where the matcher says that the answer is complete, and after one nothing follows. Where
    nothing but an end may follow it is the first of the end tokens, so that such an end is known without the model.
    """

    def __init__(self, matcher: Matcher, vocab: int, ends: Sequence[int]) -> None:
        """Take over the matcher, at the start of the answer. Raises `InvalidArgument` without `ends`."""
        if not ends:
            raise InvalidArgument(
                "a constrained answer ends with an end token, found none: leave `ignore_eos` out, or give "
                "`stop_token_ids`"
            )
        self._matcher = matcher
        self._vocab = vocab
        self._ends = frozenset(ends)
        self._first_end = bits_of(ends[:1], vocab)
        self._all_ends = bits_of(ends, vocab)
        self._nothing = Mask(np.zeros_like(self._all_ends), vocab)
        self._known: dict[tuple[int, ...], Mask] = {}  # by path
        self._standing: list[int] = []  # the path that the matcher has moved along
        self._ended = False

    def mask(self, path: Sequence[int] = ()) -> Mask:
        """Return what may follow the path; nothing after an end, or after a path that cannot follow itself.

        Raises as `Matcher.words`.
        """
        key = tuple(path)
        if (known := self._known.get(key)) is None:
            known = self._known[key] = self._find(key)
        return known

    def peek(self, path: Sequence[int]) -> Mask:
        """`mask` for what is only proposed: where it cannot be found out, nothing may follow."""
        try:
            return self.mask(path)
        except DeadEnd:
            return self._nothing

    def ended(self, path: Sequence[int] = ()) -> bool:
        """Whether committed tokens or the path hold an end token."""
        return self._ended or not self._ends.isdisjoint(path)

    def commit(self, tokens: Sequence[int]) -> None:
        """Make the tokens part of the answer. What is known of paths along them stays known."""
        count, new = len(tokens), tuple(tokens)
        if self.ended() or not self._stand([token for token in new if token not in self._ends]):
            self._known, self._ended = {}, True
            return
        self._ended = self.ended(new)
        self._standing = []
        self._known = {path[count:]: mask for path, mask in self._known.items() if path[:count] == new}

    def _find(self, path: tuple[int, ...]) -> Mask:
        if self.ended(path) or not self._stand(path):
            return self._nothing
        words = self._matcher.words()
        if self._matcher.complete():
            words = words | (self._all_ends if words.any() else self._first_end)
        return Mask(words, self._vocab)

    def _stand(self, path: Sequence[int]) -> bool:
        """Move the matcher to the end of the path; False where the path cannot be followed."""
        shared = 0
        for standing, wanted in zip(self._standing, path, strict=False):
            if standing != wanted:
                break
            shared += 1
        self._matcher.back(len(self._standing) - shared)
        del self._standing[shared:]
        for token in path[shared:]:
            if not self._matcher.advance(token):
                return False
            self._standing.append(token)
        return True


def bits_of(tokens: Sequence[int], vocab: int) -> NDArray[np.int32]:
    """[ceil(vocab / 32)] with the bits of the tokens."""
    words = np.zeros((vocab + 31) // 32, np.uint32)
    for token in tokens:
        words[token >> 5] |= np.uint32(1 << (token & 31))
    return words.view(np.int32)


Constrain = Callable[[SamplingParams], Constraint | None]
"""Makes the constraint that the params of an answer ask for; None for a free answer."""


def unconstrained(params: SamplingParams) -> None:
    """Refuse every constraint."""
    if params.structured_outputs is not None:
        raise InvalidArgument(
            "structured_outputs need the tokenizer of a bundle, and this session was made without one"
        )
