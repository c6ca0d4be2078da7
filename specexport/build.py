"""Builds a bundle from a recipe: export graphs, build them for the backend, write.

The order of stages and nothing else; each stage is a function of its own module. What needs PyTorch is imported once
the bundle is known to be out of date.
"""

from collections.abc import Mapping
from pathlib import Path

from specexport.backends import BackendBuild, backend_of
from specexport.bundle.writer import build_key, check_output, default_output, is_current, is_in_use
from specexport.cache.contents import cache_limit, describe_entries, prune_cache
from specexport.cache.entries import entries_held
from specexport.checkpoints.named import checkpoint_digests
from specexport.context import DEFAULT, BuildContext
from specexport.recipe.schema import Recipe


@entries_held()
def build(recipe: Recipe, output: Path | None = None, context: BuildContext = DEFAULT) -> Path:
    """Write the bundle of `recipe` to `output` and return its path; unchanged stages are taken from the cache.

    What the build takes from the cache stays there until it ends, and so does a bundle that lies there; then the cache
    is brought within its limit.
    Raises a `BuildError` that names cause and cure; the old bundle, if any, is untouched then. Where the machine cannot
    build what the recipe asks, `BackendMissing` or `BackendIncompatible` comes before any work.
    """
    output, limit, backend = output or default_output(recipe), cache_limit(), backend_of(recipe.backend)
    check_output(output)
    backend.check_machine(recipe)
    context.announce("fetching the checkpoint")
    digests = checkpoint_digests(recipe)
    key = build_key(recipe, digests)
    # Held before it is read, so that no other process removes it in between.
    if not context.force and is_in_use(output, output) and is_current(output, key):
        context.announce("nothing changed")
    else:
        _make(recipe, output, key, digests, backend, context)
    if removed := prune_cache(max_bytes=limit).removed:
        context.announce(f"removed from the cache, not used for longest: {describe_entries(removed)}")
    return output


def _make(
    recipe: Recipe,
    output: Path,
    key: str,
    digests: Mapping[str, str],
    backend: BackendBuild,
    context: BuildContext,
) -> None:
    """Build what is not in the cache, and write the bundle."""
    context.announce("loading PyTorch")
    from specexport.bundle.record import write_bundle
    from specexport.graph.stages import build_graph, export_graphs, graph_requests

    recipe, canonical = export_graphs(recipe, digests, context)
    requests = graph_requests(recipe, canonical, backend)
    graphs = {
        name: build_graph(recipe, backend, name, request, context) for name, request in requests.items()
    }
    write_bundle(output, key, recipe, backend, graphs, context)
