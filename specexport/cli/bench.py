"""`bench`: how fast, against what, and why."""

from pathlib import Path
from typing import Any

import click

from specexport.bench.prompts import BenchPrompt, load_prompts
from specexport.cli.measuring import (
    NumberList,
    bundles_argument,
    measure_and_print,
    plot_option,
    prompts_option,
    require_plot_of,
)
from specruntime.cli.options import (
    engine_options,
    json_option,
    max_new_tokens_option,
    measured_sampling_options,
    sampling_params,
    threads_option,
)
from specruntime.sampling.params import SamplingParams


@click.command("bench")
@bundles_argument
@prompts_option('One {"id", "prompt", "category"} a line; in the chat template where the bundle has one.')
@click.option(
    "--pytorch",
    is_flag=True,
    help="Also transformers' generate: eager, and torch.compile with a static cache.",
)
@max_new_tokens_option()
@click.option(
    "--repeat", type=click.IntRange(min=1), default=3, show_default=True, help="Times are medians over these."
)
@measured_sampling_options
@threads_option
@click.option(
    "--batch",
    type=NumberList("numbers of sequences such as 1,2,4"),
    default=(),
    metavar="N,N,...",
    help="Instead: tokens per second by the number of sequences decoded together, of one BUNDLE.",
)
@plot_option("Draws the speed per prompt.")
@json_option
def bench_command(
    bundles: tuple[Path, ...],
    prompts: Path,
    pytorch: bool,
    max_new_tokens: int,
    repeat: int,
    threads: int | None,
    batch: tuple[int, ...],
    plot: Path | None,
    as_json: bool,
    **sampling: Any,
) -> None:
    """Measure each BUNDLE with drafts and the first without, in turns, on the same prompt ids and threads.

    Several bundles of one target are compared in one run: each is a mode, called by its name.

    tokens_per_second counts all new tokens over the whole time from the prompt's ids to the last token, prefill
    included; decode_tokens_per_second leaves out the first token and the time up to it (ttft_ms). A speed-up is a
    ratio of the former. All modes are warmed up. Greedy outputs must be the same in all modes: exit code 1 if not.
    Interrupted, it prints what it has measured, marked as partial: exit code 130.
    """
    params = sampling_params(max_new_tokens=max_new_tokens, **sampling)
    loaded = load_prompts(prompts)
    if batch:
        if len(bundles) > 1 or pytorch or plot is not None:
            raise click.UsageError("--batch measures one bundle, without --pytorch and --plot")
        _bench_batches(bundles[0], loaded, batch, params, repeat, threads, as_json)
        return
    require_plot_of(plot)
    from specexport.bench.rendering import draw_speeds, render_report
    from specexport.bench.runner import BenchPlan, run_bench

    plan = BenchPlan(bundles, loaded, max_new_tokens, repeat, params, pytorch, threads)
    report = measure_and_print(
        lambda advance: run_bench(plan, advance),
        render_report,
        as_json=as_json,
        steps=plan.steps,
        files=(plot,),
    )
    if plot is not None:
        draw_speeds(report, plot)
    _require_plain_tokens([f"{run.prompt} ({run.mode})" for run in report.differing()])


def _bench_batches(
    path: Path,
    prompts: tuple[BenchPrompt, ...],
    sizes: tuple[int, ...],
    params: SamplingParams,
    repeat: int,
    threads: int | None,
    as_json: bool,
) -> None:
    from specexport.bench.batches import BatchReport, bench_batches
    from specruntime.bundle import open_bundle

    with open_bundle(path, options=engine_options(threads), verify=False) as bundle:
        report = measure_and_print(
            lambda advance: bench_batches(bundle, prompts, sizes, params, repeat, advance, threads),
            BatchReport.render,
            as_json=as_json,
            steps=repeat * len(sizes),
        )
    _require_plain_tokens([f"batch {speed.rows}" for speed in report.speeds if not speed.outputs_equal])


def _require_plain_tokens(differing: list[str]) -> None:
    """End the command with exit code 1 where any answer differs."""
    if differing:
        click.echo(
            f"error: not the tokens of plain decoding: {', '.join(differing)}; run `specexport check` for where they "
            "part",
            err=True,
        )
        raise click.exceptions.Exit(1)
