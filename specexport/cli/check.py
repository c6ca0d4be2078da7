"""`check`: is the speculative answer the plain one, and the plain one PyTorch's?"""

from pathlib import Path

import click

from specexport.cli.progress import progress
from specruntime.bundle import open_bundle
from specruntime.check import check_bundle, check_steps
from specruntime.cli.check import print_report, print_traces, trace_option
from specruntime.cli.options import (
    bundle_argument,
    engine_options,
    json_option,
    kernels_option,
    max_new_tokens_option,
    threads_option,
)


@click.command("check")
@bundle_argument
@click.option("--pytorch", is_flag=True, help="Also compare greedy answers with the checkpoint in PyTorch.")
@trace_option
@max_new_tokens_option(default=None)
@threads_option
@kernels_option
@json_option
def check_command(
    bundle: Path,
    pytorch: bool,
    traced: str | None,
    max_new_tokens: int | None,
    threads: int | None,
    kernels: str | None,
    as_json: bool,
) -> None:
    """Decode the BUNDLE's check prompts with and without drafts, greedy and sampled, and compare every token.

    In fp32 every token must be equal. Below fp32 a greedy answer may part from plain decoding where the two best
    logits lie closer than what the width of the window alone changes; that is measured and reported.
    """
    if traced is not None and pytorch:
        raise click.UsageError(
            "--trace compares with plain decoding, --pytorch with the checkpoint: give one"
        )
    with open_bundle(bundle, options=engine_options(threads, kernels)) as opened:
        if traced is not None:
            print_traces(opened, traced, max_new_tokens, as_json)
            return
        if pytorch:
            from specexport.pytorch_reference import require_comparable

            require_comparable(opened)  # before the minutes of decoding
        steps = check_steps(opened)
        prompts = len(opened.manifest.check.prompts)
        with progress(steps + (prompts + 1 if pytorch else 0)) as advance:
            report = check_bundle(opened, max_new_tokens=max_new_tokens, advance=advance)
            if pytorch:
                advance("loading the checkpoint in PyTorch")
                from specexport.pytorch_reference import check_pytorch

                report = check_pytorch(
                    opened, report, max_new_tokens=max_new_tokens, threads=threads, advance=advance
                )
    print_report(report, as_json)
