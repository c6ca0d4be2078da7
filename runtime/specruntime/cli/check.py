"""`check`: is the speculative answer the plain one?"""

import json
from pathlib import Path

import click

from specruntime.bundle import open_bundle
from specruntime.check import CheckReport, check_bundle, render_check
from specruntime.cli.options import (
    bundle_argument,
    engine_options,
    json_option,
    max_new_tokens_option,
    threads_option,
)


@click.command("check")
@bundle_argument
@max_new_tokens_option(default=None)
@threads_option
@json_option
def check_command(bundle: Path, max_new_tokens: int | None, threads: int | None, as_json: bool) -> None:
    """Decodes the BUNDLE's check prompts with and without drafts, greedy and sampled, and compares every token."""
    with open_bundle(bundle, options=engine_options(threads)) as opened:
        report = check_bundle(
            opened, max_new_tokens=max_new_tokens, advance=lambda step: click.echo(step, err=True)
        )
    print_report(report, as_json)


def print_report(report: CheckReport, as_json: bool) -> None:
    """Prints the report; ends the command with 1 and one line when an answer is not what it should be."""
    click.echo(json.dumps(report.as_dict()) if as_json else render_check(report))
    failed = [comparison for comparison in report.comparisons if not comparison.passed]
    if failed:
        first = failed[0]
        click.echo(
            f"error: {len(failed)} of {len(report.comparisons)} answers differ, first {first.law} {first.prompt} "
            f"from {first.against}: build the bundle again with --force, and report it if they still differ",
            err=True,
        )
        raise click.exceptions.Exit(1)
