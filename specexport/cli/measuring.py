"""What the commands that measure take and do alike: bundles, prompts, a report as text or JSON, a picture of it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

import click

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
        from specexport.bench.plot import require_plot

        require_plot(place)


def print_measured(report: _R, as_json: bool, render: Callable[[_R], str]) -> None:
    click.echo(json.dumps(report.as_dict()) if as_json else render(report))
