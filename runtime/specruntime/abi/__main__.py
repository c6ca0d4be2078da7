"""`python -m specruntime.abi header|reference`: writes what is generated from the table to standard output."""

import click

from specruntime.abi.header import header
from specruntime.abi.reference import reference

_TEXTS = {"header": header, "reference": reference}


@click.command()
@click.argument("what", type=click.Choice(sorted(_TEXTS)))
def main(what: str) -> None:
    """Write the C header or its documentation."""
    click.echo(_TEXTS[what](), nl=False)


if __name__ == "__main__":
    main()
