"""`inspect`: what is in a bundle."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from specruntime.bundle import load_manifest
from specruntime.cli.options import bundle_argument, json_option
from specruntime.inspection.memory import parse_size, render_memory, summarise_memory
from specruntime.inspection.summary import render_summary, summarise

_F = TypeVar("_F", bound=Callable[..., Any])


def memory_options(command: _F) -> _F:
    """`--memory` and `--budget`, for every command called inspect."""
    budget = click.option(
        "--budget", metavar="SIZE", help="With --memory: what this much, as in 8GB, has room for."
    )
    memory = click.option(
        "--memory",
        is_flag=True,
        help="Shows weights, KV cache per token and row, and the draft's share instead.",
    )
    return memory(budget(command))


@click.command("inspect")
@bundle_argument
@json_option
@memory_options
def inspect_command(bundle: Path, as_json: bool, memory: bool = False, budget: str | None = None) -> None:
    """Show a BUNDLE's models, widths, sizes, step times and parity; check every file's hash."""
    if budget is not None and not memory:
        raise click.UsageError("--budget is what --memory is set against: give both.")
    if memory:
        told = summarise_memory(
            load_manifest(bundle, verify=False), None if budget is None else parse_size(budget, "--budget")
        )
        click.echo(json.dumps(told, ensure_ascii=False) if as_json else render_memory(told))
        return
    summary = summarise(load_manifest(bundle), bundle)
    click.echo(json.dumps(summary, ensure_ascii=False) if as_json else render_summary(summary))
