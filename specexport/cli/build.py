"""`build`: from a recipe to a bundle."""

import json
from pathlib import Path

import click

from specexport.cli.progress import counted_progress, progress
from specexport.garbage_collection import without_collection
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
    """Builds the bundle of RECIPE and prints where it is; stages whose inputs did not change are skipped."""
    from specexport.recipe.schema import load_recipe

    loaded = load_recipe(recipe)  # refused before the seconds that importing torch takes
    started = clock.now()
    from specexport.bundle.up_to_date import build_key, default_output, is_current
    from specexport.bundle.writer import check_output
    from specexport.checkpoints.digests import checkpoint_digests
    from specexport.recipe.naming import naming_file
    from specexport.tensorrt.machine import check_machine, require_modelopt
    from specexport.tensorrt.options import TensorRTBackend

    if isinstance(loaded.backend, TensorRTBackend):
        check_machine(loaded.backend, loaded.stored_formats)  # before the checkpoint is fetched
    if loaded.engine_weights is not None:
        require_modelopt(loaded.engine_weights)
    bundle = output or default_output(loaded)
    check_output(bundle)
    if dry_run:
        with naming_file(recipe), progress() as advance:
            advance("loading PyTorch")
            from specexport.dry_run import estimate, render_estimate

            found = estimate(loaded, bundle)
        click.echo(json.dumps(found) if as_json else render_estimate(found))
        return
    with naming_file(recipe), without_collection(), counted_progress() as (announce, count):
        announce("fetching the checkpoint")
        digests = checkpoint_digests(loaded)
        if not force and is_current(bundle, build_key(loaded, digests)):
            announce("nothing changed")
        else:
            announce("loading PyTorch")
            from specexport.build import build as build_bundle

            build_bundle(loaded, bundle, force=force, announce=announce, steps=count, digests=digests)
    result = {"bundle": str(bundle), "seconds": clock.now() - started}
    click.echo(json.dumps(result) if as_json else str(bundle))
