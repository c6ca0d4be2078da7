"""`bench`: how fast, against what, and why."""

import json
from pathlib import Path

import click

from specexport.bench.prompts import BenchPrompt, load_prompts
from specexport.cli.progress import progress
from specruntime.cli.bundle_options import threads_option
from specruntime.cli.sampling_options import law_options, max_new_tokens_option
from specruntime.params import SamplingParams


@click.command("bench")
@click.argument("bundles", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="BUNDLE...")
@click.option(
    "--prompts",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE.jsonl",
    help='One {"id", "prompt", "category"} a line; in the chat template where the bundle has one.',
)
@click.option(
    "--pytorch",
    is_flag=True,
    help="Also transformers' generate: eager, and torch.compile with a static cache.",
)
@max_new_tokens_option()
@click.option(
    "--repeat", type=click.IntRange(min=1), default=3, show_default=True, help="Times are medians over these."
)
@law_options
@threads_option
@click.option(
    "--batch",
    callback=lambda context, option, value: batch_sizes(value),
    metavar="N,N,...",
    help="Instead: tokens per second by the number of sequences decoded together, of one BUNDLE.",
)
@click.option(
    "--plot", type=click.Path(path_type=Path), metavar="FILE.png", help="Draws the speed per prompt."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def bench_command(
    bundles: tuple[Path, ...],
    prompts: Path,
    pytorch: bool,
    max_new_tokens: int,
    repeat: int,
    temperature: float,
    top_p: float,
    seed: int,
    threads: int | None,
    batch: tuple[int, ...],
    plot: Path | None,
    as_json: bool,
) -> None:
    """Measures each BUNDLE with drafts and the first without, in turns, on the same prompt ids and threads.

    Several bundles of one target are compared in one run: each is a mode, called by its name.

    tokens_per_second counts all new tokens over the whole time from the prompt's ids to the last token, prefill
    included; decode_tokens_per_second leaves out the first token and the time up to it (ttft_ms). A speed-up is a
    ratio of the former. All modes are warmed up. Greedy outputs must be the same in all modes: exit code 1 if not.
    """
    params = SamplingParams(temperature=temperature, top_p=top_p, seed=seed, max_tokens=max_new_tokens)
    loaded = load_prompts(prompts)
    if batch:
        if len(bundles) > 1 or pytorch or plot is not None:
            raise click.UsageError("--batch measures one bundle, without --pytorch and --plot")
        _bench_batches(bundles[0], loaded, batch, params, repeat, threads, as_json)
        return
    from specexport.bench.plot import draw_speeds, require_plot

    if plot is not None:
        require_plot(plot)
    from specexport.bench.rendering import render_report
    from specexport.bench.run import BenchPlan, run_bench

    plan = BenchPlan(bundles, loaded, max_new_tokens, repeat, params, pytorch, threads)
    with progress(plan.steps) as advance:
        report = run_bench(plan, advance)
    click.echo(json.dumps(report.as_dict()) if as_json else render_report(report))
    if plot is not None:
        draw_speeds(report, plot)
    if differing := report.differing():
        names = ", ".join(f"{run.prompt} ({run.mode})" for run in differing)
        click.echo(
            f"error: not the tokens of plain decoding: {names}; run `specexport check` for where they part",
            err=True,
        )
        raise click.exceptions.Exit(1)


def batch_sizes(text: str | None) -> tuple[int, ...]:
    """`1,2,4` as numbers."""
    if text is None:
        return ()
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise click.BadParameter(f"found {text!r}, expected numbers of sequences such as 1,2,4") from error


def _bench_batches(
    path: Path,
    prompts: tuple[BenchPrompt, ...],
    sizes: tuple[int, ...],
    params: SamplingParams,
    repeat: int,
    threads: int | None,
    as_json: bool,
) -> None:
    from specexport.bench.batches import bench_batches
    from specruntime.bundle import open_bundle
    from specruntime.engines import EngineOptions

    with (
        progress(repeat * len(sizes)) as advance,
        open_bundle(path, options=EngineOptions(threads=threads), verify=False) as bundle,
    ):
        report = bench_batches(bundle, prompts, sizes, params, repeat, advance)
    click.echo(json.dumps(report.as_dict()) if as_json else report.render())
    if differing := [str(speed.rows) for speed in report.speeds if not speed.outputs_equal]:
        click.echo(
            f"error: not the tokens of plain decoding at batch {', '.join(differing)}; run `specexport check`",
            err=True,
        )
        raise click.exceptions.Exit(1)
