"""Progress of long work, on stderr: a bar on a terminal, a line per step elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from specruntime import clock

Advance = Callable[[str], None]
Count = Callable[[str, int, int], None]


@contextmanager
def progress(total: int | None = None) -> Iterator[Advance]:
    """Yield a callable that takes the name of each step as it begins; `total` is their number where it is known."""
    with counted_progress(total) as (advance, _):
        yield advance


@contextmanager
def counted_progress(total: int | None = None) -> Iterator[tuple[Advance, Count]]:
    """As `progress`, and a second callable for how far the step at hand is: (phase, done, in all)."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda step: click.echo(step, err=True), lambda phase, done, steps: None
        return
    count = [MofNCompleteColumn()] if total is not None else []
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), *count, TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=total)
        begun = 0

        def advance(step: str) -> None:
            nonlocal begun
            bar.update(task, description=step, completed=begun)
            begun += 1

        def count_steps(phase: str, done: int, steps: int) -> None:
            bar.update(task, description=phase, completed=done, total=steps)

        yield advance, count_steps


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
