"""Whether the sequences of a step draft: by a fixed limit, or by what steps with and without drafts were measured at.

Pure: fed with tokens and seconds, it reads no clock. A batch shares its launches, so the choice is one for all rows: a
row that drafts makes the launch wider for every other.
"""

from dataclasses import dataclass

_MARGIN = 1.02  # how much faster than plain steps drafting must be: measurements are noisy
_FIRST = 2  # steps of either way before they are compared
_MEMORY = 12.0  # steps; older ones fade
_PROBED = 0.25  # of what is known of a way, when it is tried again: that was long ago
_FIRST_PAUSE, _LONGEST_PAUSE = (
    12,
    96,
)  # steps until the slower way is tried again; doubled each time it stays slower


@dataclass(slots=True)
class _Way:
    """Tokens and seconds of recent steps, drafting or not."""

    tokens: float = 0.0
    seconds: float = 0.0
    steps: int = 0

    def add(self, tokens: int, seconds: float, *, kept: float = 1 - 1 / _MEMORY) -> None:
        self.tokens = kept * self.tokens + tokens
        self.seconds = kept * self.seconds + seconds
        self.steps += 1

    def faded(self, kept: float, rows: float) -> "_Way":
        """Return a part of what is known, for `rows` times as many rows in a step that takes as long."""
        return _Way(kept * rows * self.tokens, kept * self.seconds, self.steps)

    @property
    def speed(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds if self.seconds else 0.0


class _Rows:
    """What is known of steps of one number of rows."""

    def __init__(self) -> None:
        self.ways = {True: _Way(), False: _Way()}
        self.pause, self.backoff = _FIRST_PAUSE, _FIRST_PAUSE
        self.probing = False

    def guess(self, rows: float) -> "_Rows":
        """Return a guess for `rows` times as many: the way that was better here is tried first, the other by a
        probe.
        """
        guessed = _Rows()
        guessed.ways = {drafting: way.faded(_PROBED, rows) for drafting, way in self.ways.items()}
        guessed.pause = guessed.backoff = self.backoff
        return guessed

    @property
    def tried(self) -> bool:
        return all(way.steps >= _FIRST for way in self.ways.values())

    @property
    def better(self) -> bool:
        return self.ways[True].speed > _MARGIN * self.ways[False].speed

    def choose(self) -> bool:
        self.probing = False
        for way in (False, True):
            if self.ways[way].steps < _FIRST:
                return way
        self.pause -= 1
        if self.pause < 0:
            self.probing = True
            return not self.better
        return self.better

    def add(self, drafting: bool, tokens: int, seconds: float) -> None:
        before = self.better
        if not self.probing:
            self.ways[drafting].add(tokens, seconds)
            return
        self.ways[drafting].add(tokens, seconds, kept=_PROBED)
        self.backoff = _FIRST_PAUSE if self.better != before else min(2 * self.backoff, _LONGEST_PAUSE)
        self.pause = self.backoff


class Speculation:
    """Decides step by step; a single row decides for itself and always may draft."""

    def __init__(self, up_to: int | None = None) -> None:
        """`up_to`: the most rows that draft, 0 for never; None: as measured."""
        self._up_to = up_to
        self._known: dict[int, _Rows] = {}

    def allows(self, rows: int) -> bool:
        """Whether a step of so many decoding rows drafts."""
        if self._up_to is not None:
            return rows <= self._up_to
        return rows < 2 or self._of(rows).choose()

    def learn(self, rows: int, drafting: bool, tokens: int, seconds: float) -> None:
        """Note what a step of decoding rows alone committed, and how long it took."""
        if self._up_to is None and rows >= 2:
            self._of(rows).add(drafting, tokens, seconds)

    def _of(self, rows: int) -> _Rows:
        """Begin with what the nearest number of rows has learned: rows end one by one, each time a new number."""
        if rows not in self._known:
            tried = [number for number, known in self._known.items() if known.tried]
            nearest = min(tried, key=lambda number: abs(number - rows), default=None)
            self._known[rows] = _Rows() if nearest is None else self._known[nearest].guess(rows / nearest)
        return self._known[rows]
