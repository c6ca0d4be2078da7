"""The argument and the options that commands which open a bundle share."""

from pathlib import Path

import click

from specruntime.engines import EngineOptions

bundle_argument = click.argument("bundle", type=click.Path(path_type=Path))
threads_option = click.option(
    "--threads", type=click.IntRange(min=1), help="CPU threads per engine; default: what the bundle says."
)
json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object.")


def engine_options(threads: int | None) -> EngineOptions:
    return EngineOptions(threads=threads)
