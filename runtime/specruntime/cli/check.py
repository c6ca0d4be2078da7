"""`check`: is the speculative answer the plain one?"""

import json
from pathlib import Path

import click

from specruntime.bundle import LoadedBundle, open_bundle
from specruntime.check import CheckReport, check_bundle, render_check, render_traces, trace_prompt
from specruntime.cli.options import (
    bundle_argument,
    engine_options,
    json_option,
    kernels_option,
    max_new_tokens_option,
    threads_option,
)

trace_option = click.option(
    "--trace",
    "traced",
    metavar="ID",
    help="Only this check prompt: print the round where the answers differ, next to the plain one.",
)


@click.command("check")
@bundle_argument
@trace_option
@max_new_tokens_option(default=None)
@threads_option
@kernels_option
@json_option
def check_command(
    bundle: Path,
    traced: str | None,
    max_new_tokens: int | None,
    threads: int | None,
    kernels: str | None,
    as_json: bool,
) -> None:
    """Decode the BUNDLE's check prompts with and without drafts, greedy and sampled, and compare every token."""
    with open_bundle(bundle, options=engine_options(threads, kernels)) as opened:
        if traced is not None:
            print_traces(opened, traced, max_new_tokens, as_json)
            return
        report = check_bundle(
            opened, max_new_tokens=max_new_tokens, advance=lambda step: click.echo(step, err=True)
        )
    print_report(report, as_json)


def print_traces(bundle: LoadedBundle, prompt: str, max_new_tokens: int | None, as_json: bool) -> None:
    """Print the traced comparisons of one check prompt. Show, and do not judge: the command ends with 0."""
    traces = trace_prompt(bundle, prompt, max_new_tokens=max_new_tokens)
    click.echo(json.dumps([trace.as_dict() for trace in traces]) if as_json else render_traces(traces))


def print_report(report: CheckReport, as_json: bool) -> None:
    """Print the report; end the command with 1 and one line when an answer is not what it should be."""
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
