"""`cache`: what the cache holds, and removing of it what is not used any more."""

import json
import time

import click

from specruntime.cli.options import json_option
from specruntime.inspection.summary import shown_size


@click.group("cache")
def cache_command() -> None:
    """Show and prune what builds keep: downloads, traced graphs, engines, measurements.

    It lies in $SPECEXPORT_CACHE, and every build keeps it within $SPECEXPORT_CACHE_LIMIT (a size, or none; 20GB).
    """


@cache_command.command("list")
@json_option
def list_command(as_json: bool) -> None:
    """List the entries, the least recently used first."""
    from specexport.cache.contents import KINDS, cache_entries, cache_limit, describe_entries
    from specexport.cache.entries import cache_directory

    entries, limit = cache_entries(), cache_limit()
    if as_json:
        found = {"directory": str(cache_directory()), "limit_bytes": limit, "kinds": KINDS}
        click.echo(json.dumps({**found, "entries": [entry.as_dict() for entry in entries]}))
        return
    for entry in entries:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
        click.echo(f"{used}  {shown_size(1e-6 * entry.bytes):>12}  {entry.kind:<10}  {entry.name}")
    for kind, meaning in KINDS.items():
        if found_of_kind := [entry for entry in entries if entry.kind == kind]:
            click.echo(f"{kind}: {describe_entries(found_of_kind)} ({meaning})")
    most = "without a limit" if limit is None else f"limit {shown_size(1e-6 * limit)}"
    click.echo(f"{cache_directory()}: {describe_entries(entries)}, {most}")


@cache_command.command("prune")
@click.option(
    "--older-than", metavar="AGE", help="Removes what was not used for this long: 30m, 12h, 7d, 2w."
)
@click.option(
    "--max-size",
    metavar="SIZE",
    help="Then removes the least recently used until the rest fits, as in 10GB; default: the limit of builds, "
    "unless --older-than is given.",
)
@json_option
def prune_command(older_than: str | None, max_size: str | None, as_json: bool) -> None:
    """Remove entries of the cache; what a running build uses stays."""
    from specexport.cache.contents import cache_limit, describe_entries, parse_age, prune_cache
    from specexport.cache.entries import cache_directory
    from specruntime.inspection.memory import parse_size

    age = None if older_than is None else parse_age(older_than, "--older-than")
    size = None if max_size is None else parse_size(max_size, "--max-size")
    if age is None and size is None:
        size = cache_limit()
    pruned = prune_cache(older_than=age, max_bytes=size)
    if as_json:
        listed = {name: [entry.as_dict() for entry in getattr(pruned, name)] for name in ("removed", "kept")}
        click.echo(json.dumps({"directory": str(cache_directory()), **listed, "bytes": pruned.bytes}))
        return
    click.echo(f"removed: {describe_entries(pruned.removed)}")
    if pruned.kept:
        click.echo(f"in use by a build, and kept: {describe_entries(pruned.kept)}")
    click.echo(f"{cache_directory()} holds {shown_size(1e-6 * pruned.bytes)}")
