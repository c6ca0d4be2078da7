"""`inspect`: what is in a bundle."""

import json
from pathlib import Path

import click

from specruntime.bundle import load_manifest
from specruntime.cli.bundle_options import bundle_argument
from specruntime.summary import render_summary, summarise


@click.command("inspect")
@bundle_argument
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def inspect_command(bundle: Path, as_json: bool) -> None:
    """Shows a BUNDLE's models, widths, sizes, step times and parity; checks every file's hash."""
    summary = summarise(load_manifest(bundle), bundle)
    click.echo(json.dumps(summary, ensure_ascii=False) if as_json else render_summary(summary))
