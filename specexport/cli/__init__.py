"""The `specexport` command: one file a command, each one library call.

Importing it loads neither torch nor transformers: commands that need them import them when they run.
"""

from specexport.cli.interrupts import interruptible_imports

with interruptible_imports():  # they take about a second
    import click

    from specexport.cli.bench import bench_command
    from specexport.cli.build import build_command
    from specexport.cli.cache import cache_command
    from specexport.cli.check import check_command
    from specexport.cli.deploy import deploy_command
    from specexport.cli.inspect import inspect_command
    from specexport.cli.profile import profile_command
    from specexport.cli.schema import schema_command
    from specexport.cli.train import train_command
    from specexport.cli.tune import tune_command
    from specexport.cli.write_prompts import write_prompts_command
    from specruntime.cli.generate import generate_command
    from specruntime.cli.group import RefusingGroup
    from specruntime.cli.serve import serve_command


class SpecexportGroup(RefusingGroup):
    debug_variable = "SPECEXPORT_DEBUG"


@click.group(cls=SpecexportGroup)
@click.version_option(package_name="specexport")
def main() -> None:
    """Build, runs, check and measures speculative-decoding bundles.

    Exit code 0 for success, 1 for a refusal in one line on stderr, 2 for usage.
    """


for command in (
    build_command,
    generate_command,
    check_command,
    bench_command,
    tune_command,
    inspect_command,
    profile_command,
    serve_command,
    deploy_command,
    schema_command,
    train_command,
    write_prompts_command,
    cache_command,
):
    main.add_command(command)
