"""Follows an answer through its reasoning, token by token, and says which token a budget forces.

A function of the answer's tokens alone, so that drafting, verifying and plain decoding see the same: the state of a
path is a copy of that of the committed tokens, fed with the path. Knows nothing of tokenizers: the bytes of a token
come from the caller.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

Phase = Literal["before", "inside", "after"]
_SPACE = b" \t\r\n"


@dataclass(frozen=True)
class ReasoningMarks:
    """What begins and ends the reasoning of an answer; only its beginning may be reasoning."""

    start: str
    end: str
    end_ids: tuple[int, ...]  # the end mark as a budget forces it
    begun: bool = False  # whether the prompt ends inside the reasoning
    token_bytes: Callable[[int], bytes] = field(default=lambda token: b"", compare=False)


class ReasoningState:
    """Where an answer stands after the tokens that were fed. An end mark may begin and end inside any token."""

    __slots__ = ("_budget", "_marks", "_reasoned", "_text", "phase", "tokens")

    def __init__(self, marks: ReasoningMarks, budget: int | None = None) -> None:
        self.phase: Phase = "inside" if marks.begun else "before"
        self.tokens = 0  # of the reasoning, after its start mark
        self._marks, self._budget = marks, budget
        self._reasoned = marks.begun  # whether there was any reasoning
        self._text = b""  # before: all there is; inside: what may be the beginning of the end mark

    @property
    def ended(self) -> bool:
        """Whether the next token is not reasoning: it has ended, or the answer began without it."""
        return self.phase == "after"

    @property
    def bounded(self) -> bool:
        """Whether a budget may force a token from here on."""
        return self._budget is not None and self.phase != "after"

    @property
    def forced(self) -> int | None:
        """The only token that may come next: one of the end mark, when the budget is used up."""
        if self.phase != "inside" or self._budget is None or self.tokens < self._budget:
            return None
        return self._marks.end_ids[self.tokens - self._budget]

    def copy(self) -> "ReasoningState":
        copied = ReasoningState.__new__(ReasoningState)
        copied.phase, copied.tokens, copied._text = self.phase, self.tokens, self._text
        copied._marks, copied._budget, copied._reasoned = self._marks, self._budget, self._reasoned
        return copied

    def after(self, tokens: Sequence[int]) -> "ReasoningState":
        """Return the state after further tokens; this one stays as it is."""
        state = self.copy()
        state.feed(tokens)
        return state

    def feed(self, tokens: Sequence[int]) -> int:
        """Take further tokens; return how many of them came before the end of the reasoning or hold it.

        The rest is what follows the reasoning: of a run of accepted tokens, those that a constraint is about. All of
        them where the run shows that the answer began without reasoning.
        """
        for count, token in enumerate(tokens):
            if self.ended:
                return count
            undecided = self.phase == "before"
            if self._take(token) and undecided and not self._reasoned:
                return 0
        return len(tokens)

    def _take(self, token: int) -> bool:
        """Take a token; return whether no reasoning follows it."""
        self._text += self._marks.token_bytes(token)
        if self.phase == "before":
            self._begin()
            return self.ended
        self.tokens += 1
        self._look_for_end()
        if self._budget is not None and self.tokens >= self._budget + len(self._marks.end_ids):
            self.phase = "after"
        return self.ended

    def _begin(self) -> None:
        start, text = self._marks.start.encode(), self._text.lstrip(_SPACE)
        if text.startswith(start):
            self.phase, self._text, self._reasoned = "inside", text[len(start) :], True
            self._look_for_end()
        elif not start.startswith(text):
            self.phase = "after"

    def _look_for_end(self) -> None:
        end = self._marks.end.encode()
        if end in self._text:
            self.phase = "after"
        else:
            self._text = self._text[-len(end) + 1 :] if len(end) > 1 else b""
