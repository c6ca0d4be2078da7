"""`tune`: is speculation worth it here, and with what."""

import json
from pathlib import Path
from typing import Any

import click

from specexport.cli.measuring import (
    bundles_argument,
    measure_and_print,
    plot_option,
    prompts_option,
    require_plot_of,
)
from specruntime.cli.options import (
    json_option,
    max_new_tokens_option,
    measured_sampling_options,
    sampling_params,
    threads_option,
)


@click.command("tune")
@bundles_argument
@prompts_option('Your traffic: one {"id", "prompt", "category"} a line.')
@max_new_tokens_option()
@click.option(
    "--tried",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="Sizes of each bundle to measure, the best predicted first.",
)
@click.option(
    "--minutes",
    type=click.FloatRange(min=0, min_open=True),
    default=5.0,
    show_default=True,
    help="Time limit for the layer search of a layer_skip draft.",
)
@measured_sampling_options
@threads_option
@click.option(
    "--write",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="RECIPE",
    help="Puts the best draft, length or tree into this recipe; its other lines stay.",
)
@plot_option("Draws speed by window width.")
@json_option
def tune_command(
    bundles: tuple[Path, ...],
    prompts: Path,
    max_new_tokens: int,
    tried: int,
    minutes: float,
    threads: int | None,
    write: Path | None,
    plot: Path | None,
    as_json: bool,
    **sampling: Any,
) -> None:
    """Measure on your prompts what each BUNDLE's draft is worth, and pick kind, length or tree.

    One pass measures how often the target agrees by depth and rank, how long a window of each width takes and what
    drafting costs; the speed of each size is predicted from that. The best predicted are then measured against
    plain decoding. Where nothing pays, it says so. Interrupted, it prints what it has found, marked as partial, and
    writes nothing: exit code 130.
    """
    from specexport.bench.prompts import load_prompts

    loaded = load_prompts(prompts)
    require_plot_of(plot)
    if write is not None:
        from specexport.tune.choice import require_same_target

        require_same_target(bundles, write)  # refused before the minutes that measuring takes
    from specexport.tune.rendering import render_tuning
    from specexport.tune.tuner import TunePlan, tune

    params = sampling_params(max_new_tokens=max_new_tokens, **sampling)
    plan = TunePlan(bundles, loaded, max_new_tokens, tried, minutes, params, threads)
    report = measure_and_print(
        lambda advance: tune(plan, advance), render_tuning, as_json=as_json, files=(plot, write)
    )
    if plot is not None:
        from specexport.tune.rendering import draw_tuning

        draw_tuning(report, plot)
    if write is not None:
        from specexport.tune.choice import write_choice

        click.echo(f"{write}: draft is now {json.dumps(write_choice(report, write))}", err=True)
