"""`tune`: is speculation worth it here, and with what."""

import json
from pathlib import Path

import click

from specexport.cli.progress import progress
from specruntime.cli.bundle_options import threads_option
from specruntime.cli.sampling_options import law_options, max_new_tokens_option
from specruntime.params import SamplingParams


@click.command("tune")
@click.argument("bundles", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="BUNDLE...")
@click.option(
    "--prompts",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE.jsonl",
    help='Your traffic: one {"id", "prompt", "category"} a line.',
)
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
    help="Longest search for the layers of a layer_skip draft.",
)
@law_options
@threads_option
@click.option(
    "--write",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="RECIPE",
    help="Puts the best draft, length or tree into this recipe; its other lines stay.",
)
@click.option(
    "--plot", type=click.Path(path_type=Path), metavar="FILE.png", help="Draws speed by window width."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def tune_command(
    bundles: tuple[Path, ...],
    prompts: Path,
    max_new_tokens: int,
    tried: int,
    minutes: float,
    temperature: float,
    top_p: float,
    seed: int,
    threads: int | None,
    write: Path | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Measures on your prompts what each BUNDLE's draft is worth, and picks kind, length or tree.

    One pass tells how often the target agrees by depth and rank, how long a window of each width takes and what
    drafting costs; from that follows the speed of each size (predicted). The best predicted are then measured beside
    plain decoding. Where nothing pays, it says so.
    """
    from specexport.bench.prompts import load_prompts

    loaded = load_prompts(prompts)
    if plot is not None:
        from specexport.bench.plot import require_plot

        require_plot(plot)
    if write is not None:
        from specexport.tune.recipe_edit import stated_draft

        stated_draft(write)  # refused before the minutes that measuring takes
    from specexport.tune.rendering import render_tuning
    from specexport.tune.run import TunePlan, tune

    params = SamplingParams(temperature=temperature, top_p=top_p, seed=seed)
    plan = TunePlan(bundles, loaded, max_new_tokens, tried, minutes, params, threads)
    with progress() as advance:
        report = tune(plan, advance)
    click.echo(json.dumps(report.as_dict()) if as_json else render_tuning(report))
    if plot is not None:
        from specexport.tune.plot import draw_tuning

        draw_tuning(report, plot)
    if write is not None:
        from specexport.tune.choice import write_choice

        click.echo(f"{write}: draft is now {write_choice(report, write)}", err=True)
