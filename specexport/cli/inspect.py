"""`inspect`: what is in a bundle, and its draft tree as a picture."""

from pathlib import Path

import click

from specruntime.cli.inspect import inspect_command as inspect_bundle
from specruntime.cli.inspect import memory_options
from specruntime.cli.options import bundle_argument, json_option


@click.command("inspect")
@bundle_argument
@json_option
@click.option(
    "--tree",
    type=click.Path(path_type=Path),
    metavar="FILE.png",
    help="Draws the draft's tree instead; BUNDLE may be a recipe then.",
)
@memory_options
@click.pass_context
def inspect_command(
    ctx: click.Context, bundle: Path, as_json: bool, tree: Path | None, memory: bool, budget: str | None
) -> None:
    """Show a BUNDLE's models, widths, sizes, step times and parity; check every file's hash."""
    if tree is None:
        ctx.invoke(inspect_bundle, bundle=bundle, as_json=as_json, memory=memory, budget=budget)
        return
    if memory or budget:
        raise click.UsageError("--tree draws a picture: leave out --memory and --budget")
    if as_json:
        raise click.UsageError("--tree draws a picture and prints nothing: leave out --json")
    from specexport.cli.tree_drawing import draw_tree, drawn_tree, require_drawing

    require_drawing(tree)
    source = drawn_tree(bundle)
    draw_tree(source.tree, tree, title=source.title, acceptance=source.acceptance)
    click.echo(str(tree))
