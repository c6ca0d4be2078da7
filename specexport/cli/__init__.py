"""The `specexport` command: one file a command, each one library call.

Importing it loads neither torch nor transformers: commands that need them import them when they run.
"""

import click

from specexport.cli.bench import bench
from specexport.cli.build import build
from specexport.cli.check import check
from specexport.cli.schema import schema
from specruntime.cli.generate import generate
from specruntime.cli.group import RefusingGroup
from specruntime.cli.inspect import inspect


class SpecexportGroup(RefusingGroup):
    debug_variable = "SPECEXPORT_DEBUG"


@click.group(cls=SpecexportGroup)
@click.version_option(package_name="specexport")
def main() -> None:
    """Builds, runs, checks and measures speculative-decoding bundles.

    Exit code 0 for success, 1 for a refusal in one line on stderr, 2 for usage.
    """


for command in (build, generate, check, bench, inspect, schema):
    main.add_command(command)
