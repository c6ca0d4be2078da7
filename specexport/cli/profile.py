"""`profile`: where a round's time goes."""

from pathlib import Path

import click

from specexport.cli.measuring import plot_option, print_measured, require_plot_of
from specruntime.cli.options import bundle_argument, json_option, max_new_tokens_option, threads_option


@click.command("profile")
@bundle_argument
@max_new_tokens_option(64)
@threads_option
@plot_option("Draws rounds and operators.")
@json_option
def profile_command(
    bundle: Path, max_new_tokens: int, threads: int | None, plot: Path | None, as_json: bool
) -> None:
    """Show where a round of the BUNDLE spends its time: draft, verify, accept and commit; each window; each operator
    of each window.

    The check prompts are answered greedily for the phases. Operators come from ONNX Runtime's own profile, with about
    200 tokens in the cache; a profiled window is slower than a plain one, which is timed for comparison.
    """
    require_plot_of(plot)
    from specexport.cli.progress import progress
    from specexport.profile.report import draw_profile, profile_bundle, render_profile

    with progress() as advance:
        report = profile_bundle(bundle, threads=threads, max_new_tokens=max_new_tokens, advance=advance)
    print_measured(report, as_json, render_profile)
    if plot is not None:
        draw_profile(report, plot)
