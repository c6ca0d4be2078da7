"""The `specruntime` console script. Its commands are also those of `specexport`."""

import click

from specruntime.cli.check import check_command
from specruntime.cli.generate import generate_command
from specruntime.cli.group import RefusingGroup
from specruntime.cli.inspect import inspect_command
from specruntime.cli.serve import serve_command


@click.group(cls=RefusingGroup)
@click.version_option(package_name="specruntime")
def main() -> None:
    """Run speculative-decoding bundles.

    Exit code 0 for success, 1 for a refusal in one line on stderr, 2 for usage.
    """


for command in (generate_command, check_command, inspect_command, serve_command):
    main.add_command(command)
