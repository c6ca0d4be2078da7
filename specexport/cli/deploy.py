"""`deploy`: a bundle for other serving systems."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from specruntime.cli.options import bundle_argument, threads_option
from specruntime.serving.prefixes import PREFIX_CACHING

_F = TypeVar("_F", bound=Callable[..., Any])
_COUNT = click.IntRange(min=1)


def _instance_options(command: _F) -> _F:
    """BUNDLE, where to write, and under their names what `InstanceOptions` holds."""
    for option in (
        threads_option,
        click.option(
            "--prefix-caching",
            type=click.Choice(PREFIX_CACHING),
            default="exact",
            show_default=True,
            help="Reuse of cache rows between prompts that begin alike, as of `serve`.",
        ),
        click.option(
            "--queue",
            type=click.IntRange(min=0),
            default=64,
            show_default=True,
            help="Requests that may wait in each.",
        ),
        click.option(
            "--slots",
            type=_COUNT,
            default=4,
            show_default=True,
            help="Number of concurrent requests in each.",
        ),
        click.option(
            "-o",
            "--output",
            type=click.Path(path_type=Path),
            required=True,
            metavar="DIR",
            help="A new directory.",
        ),
        bundle_argument,
    ):
        command = option(command)
    return command


@click.group("deploy")
def deploy_command() -> None:
    """Write what another serving system needs to run a bundle."""


@deploy_command.command("ray")
@_instance_options
@click.option("--min-replicas", type=_COUNT, default=1, show_default=True, help="Replicas without load.")
@click.option("--max-replicas", type=_COUNT, default=4, show_default=True, help="Replicas under load.")
@click.option(
    "--cpus",
    type=click.FloatRange(min=0.1),
    default=1.0,
    show_default=True,
    help="Cores that a replica reserves.",
)
def ray_command(
    bundle: Path, output: Path, min_replicas: int, max_replicas: int, cpus: float, **instance: Any
) -> None:
    """Write a Ray Serve application over BUNDLE: the OpenAI-compatible server in replicas that follow the load."""
    from specexport.deploy.ray import RayOptions, write_ray

    if max_replicas < min_replicas:
        raise click.UsageError(f"--max-replicas is {max_replicas}, below --min-replicas, {min_replicas}.")
    options = RayOptions(min_replicas=min_replicas, max_replicas=max_replicas, cpus=cpus, **instance)
    click.echo(str(write_ray(bundle, output, options)))


@deploy_command.command("triton")
@_instance_options
def triton_command(bundle: Path, output: Path, **instance: Any) -> None:
    """Write a Triton model repository over BUNDLE: Python backend, one response a round."""
    from specexport.deploy.place import InstanceOptions
    from specexport.deploy.triton import write_triton

    click.echo(str(write_triton(bundle, output, InstanceOptions(**instance))))
