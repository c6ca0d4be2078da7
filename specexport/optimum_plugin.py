"""`optimum-cli export specexport RECIPE [-o DIR]`, for those who start at Optimum.

Light to import: optimum-cli loads every plug-in at start, so the build is imported only when it runs.
"""

import sys
from argparse import ArgumentParser
from pathlib import Path

from optimum.commands.base import BaseOptimumCLICommand, CommandInfo
from optimum.commands.export.base import ExportCommand


class SpecexportExportCommand(BaseOptimumCLICommand):  # type: ignore[misc]  # optimum has no type information
    """Builds the bundle of a recipe, as `specexport build` does."""

    COMMAND = CommandInfo(
        name="specexport",
        help="Build a speculative-decoding bundle (target and draft engines) from a recipe.",
    )

    @staticmethod
    def parse_args(parser: ArgumentParser) -> None:
        """Declare the command's arguments."""
        parser.add_argument("recipe", type=Path, help="the recipe, a YAML file")
        parser.add_argument(
            "-o",
            "--output",
            type=Path,
            metavar="DIR",
            help="the bundle to write; ./<recipe name>.bundle if not given",
        )
        parser.add_argument("--force", action="store_true", help="build again even where nothing changed")

    def run(self) -> None:
        """Build, print the bundle's path, and exits 1 with one line for what a user can cause."""
        from specexport.build import build
        from specexport.context import BuildContext
        from specexport.recipe.schema import load_recipe
        from specexport.recipe.sources import naming_file
        from specruntime.errors import SpecError

        try:
            recipe = load_recipe(self.args.recipe)
            with naming_file(self.args.recipe):
                output = build(recipe, self.args.output, BuildContext(self.args.force, _announce))
        except SpecError as error:
            sys.stderr.write(f"error: {error}\n")
            raise SystemExit(1) from None
        sys.stdout.write(f"{output}\n")


def _announce(stage: str) -> None:
    sys.stderr.write(f"{stage}\n")


REGISTER_COMMANDS = [(SpecexportExportCommand, ExportCommand)]
