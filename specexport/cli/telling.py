"""Lines on stderr about work that takes minutes."""

from collections.abc import Callable
from time import monotonic

import click

_SECONDS = 15.0


def say(text: str) -> None:
    click.echo(text, err=True)


class Occasionally:
    """Passes on a line every so often, and the last one."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._last = monotonic()

    def count(self, done: int, of: int) -> None:
        if done == of or monotonic() - self._last > _SECONDS:
            self._last = monotonic()
            self._tell(f"{done} of {of}")
