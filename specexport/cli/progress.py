"""Progress of long work, on stderr: a bar on a terminal, a line per step elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

Advance = Callable[[str], None]
Count = Callable[[str, int, int], None]


@contextmanager
def progress(total: int | None = None) -> Iterator[Advance]:
    """What is yielded takes the name of each step as it begins; `total` is their number where it is known."""
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
