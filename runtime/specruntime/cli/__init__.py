"""The `specruntime` console script. Its commands are also those of `specexport`."""

import click

from specruntime.cli.check import check
from specruntime.cli.generate import generate
from specruntime.cli.group import RefusingGroup
from specruntime.cli.inspect import inspect


@click.group(cls=RefusingGroup)
@click.version_option(package_name="specruntime")
def main() -> None:
    """Runs speculative-decoding bundles.

    Exit code 0 for success, 1 for a refusal in one line on stderr, 2 for usage.
    """


for command in (generate, check, inspect):
    main.add_command(command)
