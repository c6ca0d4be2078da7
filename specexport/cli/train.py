"""`train`: from a recipe and prompts to a trained draft."""

import json
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import yaml

from specexport.cli.measuring import NumberList, prompts_option
from specexport.cli.progress import Count, Occasionally, Pace, counted_progress, say

if TYPE_CHECKING:
    from specexport.training.answers import AnswerProgress
    from specexport.training.loop import Progress
    from specexport.training.pipeline import Order

KINDS = ("medusa", "eagle3", "model")
_SMALLEST_VOCABULARY = 16


@click.command("train")
@click.argument("recipe", type=click.Path(path_type=Path))
@click.option("--kind", type=click.Choice(KINDS), required=True, help="Kind of draft to train.")
@prompts_option(
    'One {"prompt"} per line, which the target answers (`specexport write-prompts` writes some), or {"messages"} that '
    "end with an answer."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    required=True,
    metavar="DIR",
    help="Output directory of the draft.",
)
@click.option(
    "--work",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Answers, features and checkpoints, kept for the next run. Default: OUT with -work at its end.",
)
@click.option(
    "--minutes",
    type=click.FloatRange(min=0, min_open=True),
    help="Time limit for training, all runs together.",
)
@click.option("--epochs", type=click.IntRange(min=1), default=6, show_default=True)
@click.option("--threads", type=click.IntRange(min=1), help="Default: all cores.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option(
    "--depth",
    type=click.IntRange(1, 16),
    help="Number of tokens to predict: Medusa heads, unrolled EAGLE-3 steps. Default: 4, or the heads of --start.",
)
@click.option(
    "--vocabulary",
    type=click.IntRange(min=_SMALLEST_VOCABULARY),
    help="Draft vocabulary size: the most frequent ids; Medusa heads keep all ids and learn from these. Default: "
    "8192, or those of --start.",
)
@click.option(
    "--layers",
    type=NumberList("layer numbers with commas, such as 0,1,29"),
    metavar="N,N,...",
    help="Kind model: the target's layers it keeps.",
)
@click.option("--learning-rate", type=click.FloatRange(min=0, min_open=True), help="Default: by kind.")
@click.option("--tokens-per-step", type=click.IntRange(min=64), default=2048, show_default=True)
@click.option(
    "--answer-tokens", type=click.IntRange(min=8), default=224, show_default=True, help="Longest answer."
)
@click.option(
    "--start",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Train this draft further; with --vocabulary, its ids are chosen again.",
)
@click.option("--restart", is_flag=True, help="Forget this kind's checkpoint; answers and features stay.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object: draft, acceptance, accepted_length.")
def train_command(
    recipe: Path,
    kind: str,
    prompts: Path,
    threads: int | None,
    layers: tuple[int, ...] | None,
    start: Path | None,
    as_json: bool,
    **asked: Any,
) -> None:
    """Train a draft for the target of RECIPE on the target's own answers to prompts, on the CPU.

    An interrupted run continues from its last checkpoint (one every 10 minutes). The draft, its config and a model card
    are written to OUT; a recipe names that directory as `draft.source`.
    """
    _refuse_layers(kind, layers, start)
    from specexport.recipe.schema import load_recipe

    loaded = load_recipe(recipe)
    from specexport.training.prompts_file import read_training_text

    read_training_text(prompts)  # refused before the seconds that importing torch takes
    import torch

    from specexport.recipe.sources import naming_file
    from specexport.training.pipeline import Reports, train_draft

    if threads is not None:
        torch.set_num_threads(threads)
    order = _order(kind=kind, prompts=prompts, layers=layers, start=start, **asked)
    with naming_file(recipe), counted_progress() as (_, count):
        acceptance = train_draft(loaded, order, Reports(say, _answers(count), _say_step))
    _tell(order, recipe, acceptance, as_json)


def _answers(count: Count) -> "Callable[[AnswerProgress], None]":
    """Return a bar on a terminal; elsewhere a line every so often."""
    pace, occasionally = Pace(), Occasionally(say)

    def tell(progress: "AnswerProgress") -> None:
        line = f"{progress.answered} of {progress.asked} answers, " + pace.describe(
            progress.tokens, progress.expected
        )
        count(line, progress.tokens, max(progress.expected, 1))
        if not sys.stderr.isatty():
            occasionally.say(line, last=progress.answered == progress.asked)

    return tell


def _refuse_layers(kind: str, layers: tuple[int, ...] | None, start: Path | None) -> None:
    if layers is not None and kind != "model":
        raise click.UsageError(f"--layers: found with --kind {kind}, expected with --kind model only")
    if layers is not None and start is not None:
        raise click.UsageError(
            "--layers: found with --start, whose draft has its layers; leave out one of them"
        )


def _order(
    *,
    kind: str,
    prompts: Path,
    out: Path,
    work: Path | None,
    minutes: float | None,
    epochs: int,
    seed: int,
    depth: int | None,
    vocabulary: int | None,
    layers: tuple[int, ...] | None,
    learning_rate: float | None,
    tokens_per_step: int,
    answer_tokens: int,
    start: Path | None,
    restart: bool,
) -> "Order":
    from specexport.training.kinds import LEARNING_RATES, Shape
    from specexport.training.loop import TrainingPlan
    from specexport.training.pipeline import Order

    return Order(
        kind=kind,  # type: ignore[arg-type]  # click has checked it
        prompts=prompts,
        out=out,
        work=work or out.with_name(f"{out.name}-work"),
        shape=Shape(depth, vocabulary, layers),
        plan=TrainingPlan(epochs, tokens_per_step, learning_rate or LEARNING_RATES[kind], seed, minutes),  # type: ignore[index]
        answer_tokens=answer_tokens,
        start=start,
        restart=restart,
        command=shlex.join(["specexport", *sys.argv[1:]]),
    )


def _tell(order: "Order", recipe: Path, acceptance: list[float], as_json: bool) -> None:
    out, length = order.out, 1 + sum(acceptance)
    draft = {"kind": order.kind, "source": _source(out, recipe), "k": max(len(acceptance), 1)}
    if as_json:
        report = {
            "draft": str(out),
            "acceptance": acceptance,
            "accepted_length": length,
            "recipe": {"draft": draft},
        }
        click.echo(json.dumps(report))
        return
    shares = " ".join(f"{share:.3f}" for share in acceptance)
    click.echo(f"{out}: held-out acceptance {shares}, {length:.2f} tokens per round")
    click.echo("\nIn a recipe for the same target:\n")
    click.echo(yaml.safe_dump({"draft": draft}, sort_keys=False, allow_unicode=True), nl=False)


def _source(out: Path, recipe: Path) -> str:
    """Return the address of the draft as a recipe in the directory of `recipe` names it."""
    relative = os.path.relpath(out.absolute(), recipe.absolute().parent)
    return str(out.absolute()) if relative.startswith("..") else f"./{Path(relative).as_posix()}"


def _say_step(progress: "Progress", done: float) -> None:
    shares = " ".join(f"{share:.2f}" for share in progress.acceptance)
    speed = progress.tokens / max(progress.seconds, 1e-9)
    say(
        f"{100 * done:3.0f} %  epoch {progress.epoch + 1}  step {progress.step}  loss {progress.loss:.3f}  "
        f"accepted {shares}  {speed:.0f} tokens/s  {progress.seconds / 60:.1f} min"
    )
