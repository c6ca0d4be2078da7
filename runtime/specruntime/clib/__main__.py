"""`python -m specruntime.clib -o DIR`."""

from pathlib import Path

import click

from specruntime.clib.compile import build_library
from specruntime.errors import SpecError


@click.command()
@click.option("-o", "--output", type=click.Path(path_type=Path), default=Path(), help="Where to write it.")
@click.option("--cc", default="cc", show_default=True, help="The C compiler.")
def build(output: Path, cc: str) -> None:
    """Write libspecruntime and specruntime.h to a directory and print the library's path."""
    try:
        click.echo(build_library(output, cc))
    except SpecError as error:
        raise click.ClickException(str(error)) from None


if __name__ == "__main__":
    build()
