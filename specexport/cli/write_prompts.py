"""`write-prompts`: lets an instruct model write the prompts that its drafts are trained on."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from specexport.cli.progress import Occasionally, say

if TYPE_CHECKING:
    from specexport.recipe.schema import Recipe


@click.command("write-prompts")
@click.argument("recipe", type=click.Path(path_type=Path))
@click.option(
    "--count", type=click.IntRange(min=1), required=True, help="Total number of prompts in the file."
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE.jsonl",
    help='One {"prompt"} per line; an existing file is continued.',
)
@click.option(
    "--openings",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="Beginnings of prompts, one per line, used in turn; the model continues them.",
)
@click.option(
    "--exclude",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="FILE.jsonl",
    help="Prompts to exclude, such as a benchmark's, with all that share 13 words in a row with one of them.",
)
@click.option("--threads", type=click.IntRange(min=1), help="Default: all cores.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
def write_prompts_command(
    recipe: Path,
    count: int,
    output: Path,
    openings: Path | None,
    exclude: tuple[Path, ...],
    threads: int | None,
    seed: int,
) -> None:
    """Let the target of RECIPE write prompts: it gets its chat template up to where a user speaks, and speaks.

    What the target is asked to answer later is then what it was tuned on, and free of anybody else's text.
    """
    from specexport.recipe.schema import load_recipe
    from specexport.training.prompts_file import Excluded, append_prompts, read_prompts

    loaded = load_recipe(recipe)
    excluded = Excluded([prompt for path in exclude for prompt in read_prompts(path, "--exclude")])
    known = read_prompts(output, "--output") if output.is_file() and output.stat().st_size else []
    if not output.absolute().parent.is_dir():
        raise click.UsageError(f"--output: {output.absolute().parent} is not a directory; create it first")
    lines = _openings(openings)
    if len(known) >= count:
        click.echo(f"{output}: holds {len(known)} prompts")
        return
    import torch

    from specexport.checkpoints.loading import load_checkpoint
    from specexport.recipe.sources import naming_file
    from specexport.training.prompt_codec import PromptCodec
    from specexport.training.questions import write_questions
    from specexport.training.target import fast_copy

    with naming_file(recipe):
        _refuse_unusable(loaded)
    say("loading the target into PyTorch")
    if threads is not None:
        torch.set_num_threads(threads)
    with naming_file(recipe):
        checkpoint = load_checkpoint(loaded.target, "fp32")
    tell = Occasionally(say)
    questions = write_questions(
        fast_copy(checkpoint.model),
        PromptCodec.of(checkpoint),
        count - len(known),
        end_ids=checkpoint.eos_token_ids,
        openings=lines or ("",),
        excluded=excluded,
        known=known,
        seed=seed + len(known),
        progress=lambda written: tell.count(len(known) + written, count),
    )
    for question in questions:
        append_prompts(output, [question])
    click.echo(f"{output}: holds {count} prompts")


def _openings(path: Path | None) -> list[str]:
    from specexport.text_lines import read_lines

    try:
        return [line for line in read_lines(path) if line] if path else []
    except ValueError as error:
        raise click.UsageError(f"--openings: {path} cannot be read: {error}") from None


def _refuse_unusable(recipe: "Recipe") -> None:
    """Refuse what config and tokenizer decide, before the weights are read."""
    from specexport.checkpoints.loading import known_config, known_tokenizer
    from specexport.training.decoding import require_decodable
    from specexport.training.prompt_codec import PromptCodec

    PromptCodec.open(recipe.name, known_tokenizer(recipe.target)).begin_user_turn("")
    if (config := known_config(recipe.target)) is not None:
        untried = require_decodable(config, trust_remote_code=recipe.target.trust_remote_code)
        if untried is not None:
            say(f"the target's attention was not tried before its weights are read: {untried}")
