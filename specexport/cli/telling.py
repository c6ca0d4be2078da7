"""Lines on stderr about work that takes minutes."""

from collections.abc import Callable

import click

from specruntime import clock

_SECONDS = 15.0


def say(text: str) -> None:
    click.echo(text, err=True)


class Occasionally:
    """Passes on a line every so often, and the last one."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._last = clock.now()

    def count(self, done: int, of: int) -> None:
        self.say(f"{done} of {of}", last=done == of)

    def say(self, line: str, *, last: bool) -> None:
        if last or clock.now() - self._last > _SECONDS:
            self._last = clock.now()
            self._tell(line)


class Pace:
    """Work that is counted in tokens: how fast it goes and how long it will take, since the first call."""

    def __init__(self) -> None:
        self._begun = clock.now()

    def describe(self, tokens: int, expected: int) -> str:
        """`tokens` of about `expected` are done."""
        if not tokens:
            return "0 tokens"
        seconds = max(clock.now() - self._begun, 1e-9)
        left = seconds / tokens * max(expected - tokens, 0)
        return f"{tokens} tokens, {tokens / seconds:.0f} tokens/s, about {shown_time(left)} left"


def shown_time(seconds: float) -> str:
    """In the largest unit that leaves a whole number above 1."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
