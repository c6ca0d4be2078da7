"""`build`: from a recipe to a bundle."""

import json
from pathlib import Path

import click

from specexport.cli.progress import counted_progress
from specexport.context import without_collection
from specruntime import clock


@click.command("build")
@click.argument("recipe", type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), metavar="DIR", help="Default: ./<recipe name>.bundle"
)
@click.option("--force", is_flag=True, help="Build again even where nothing changed.")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Only say whether it builds, and what it would take: capacity, sizes, memory, time. Reads no weights.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object: bundle, seconds; or the dry run's.")
def build_command(recipe: Path, output: Path | None, force: bool, dry_run: bool, as_json: bool) -> None:
    """Build the bundle of RECIPE and print where it is; stages whose inputs did not change are skipped."""
    from specexport.build import build
    from specexport.context import BuildContext
    from specexport.recipe.schema import load_recipe
    from specexport.recipe.sources import naming_file

    loaded, started = load_recipe(recipe), clock.now()
    with naming_file(recipe), without_collection(), counted_progress() as (announce, count):
        if dry_run:
            from specexport.dry_run import estimate, render_estimate

            found = estimate(loaded, output, announce)
        else:
            bundle = build(loaded, output, BuildContext(force=force, announce=announce, steps=count))
            found = {"bundle": str(bundle), "seconds": clock.now() - started}
    if as_json:
        click.echo(json.dumps(found))
    else:
        click.echo(render_estimate(found) if dry_run else found["bundle"])
