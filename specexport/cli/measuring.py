"""What the commands that measure take and do alike: bundles, prompts, a report as text or JSON, a picture of it.

Interrupted, they print what they have measured so far, and end as every interrupted command.
"""

import json
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Protocol, TypeVar

import click

from specexport.cli.progress import Advance, progress
from specexport.errors import Interrupted

_F = TypeVar("_F", bound=Callable[..., Any])
_PATH = click.Path(path_type=Path)

bundles_argument = click.argument("bundles", nargs=-1, required=True, type=_PATH, metavar="BUNDLE...")


class Report(Protocol):
    def as_dict(self) -> dict[str, Any]: ...


_R = TypeVar("_R", bound=Report)


def prompts_option(text: str) -> Callable[[_F], _F]:
    return click.option("--prompts", type=_PATH, required=True, metavar="FILE.jsonl", help=text)


def plot_option(text: str) -> Callable[[_F], _F]:
    return click.option("--plot", type=_PATH, metavar="FILE.png", help=text)


def require_plot_of(place: Path | None) -> None:
    """Before minutes are spent measuring; raises as `require_plot`."""
    if place is not None:
        from specexport.bench.rendering import require_plot

        require_plot(place)


def print_measured(report: _R, as_json: bool, render: Callable[[_R], str]) -> None:
    click.echo(json.dumps(report.as_dict()) if as_json else render(report))


def measure_and_print(
    measure: Callable[[Advance], _R],
    render: Callable[[_R], str],
    *,
    as_json: bool,
    steps: int | None = None,
    files: Sequence[Path | None] = (),
) -> _R:
    """Return the report of `measure`, printed. `files` are what the caller makes of a whole report.

    On Ctrl-C and SIGTERM a partial report is printed and the interrupt passed on: no file is made of it, which is said.
    """
    try:
        with _terminable(), progress(steps) as advance:
            report = measure(advance)
    except Interrupted as stop:
        print_measured(stop.found, as_json, render)
        for file in files:
            if file is not None:
                click.echo(f"{file} was not written: the figures are partial", err=True)
        raise
    print_measured(report, as_json, render)
    return report


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM interrupt as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


class NumberList(click.ParamType[tuple[int, ...]]):
    name = "N,N,..."

    def __init__(self, expected: str) -> None:
        """Set `expected`: what a message says of such a list."""
        self._expected = expected

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        try:
            return value if isinstance(value, tuple) else tuple(int(part) for part in value.split(","))
        except ValueError:
            self.fail(f"found {value!r}, expected {self._expected}", param, ctx)
