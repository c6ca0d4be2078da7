"""Which graphs a recipe needs, of what each is made, and at which windows it runs: one `GraphRequest` each."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from specexport.backends import BackendBuild
from specexport.cache.context import BuildContext
from specexport.checkpoints.check_prompts import require_usable_prompts
from specexport.checkpoints.fitting import fit_capacity, fit_check
from specexport.checkpoints.named import RecipeCheckpoints
from specexport.checkpoints.outline import outline_recipe
from specexport.checkpoints.vocabulary import require_shared_vocabulary
from specexport.graph.canonical import CanonicalGraph, canonical_key, export_canonical, is_exported
from specexport.graph.files import target_profiles
from specexport.graph.plan import GraphPlan
from specexport.recipe.naming import naming_source
from specexport.recipe.schema import Recipe
from specexport.recipe.weights import Weights
from specruntime.manifest.schema import Profile


@dataclass(frozen=True)
class GraphRequest:
    """A graph that the backend must make: the variant `plan` of `canonical`, run at `profiles`."""

    canonical: CanonicalGraph
    plan: GraphPlan
    profiles: tuple[Profile, ...]


def export_graphs(
    recipe: Recipe, digests: Mapping[str, str], context: BuildContext
) -> tuple[Recipe, dict[str, CanonicalGraph]]:
    """`recipe` with all that it leaves to its checkpoints, and their canonical graphs by name.

    `digests`: `checkpoint_digests` of the recipe. The graphs: the target's, and the draft's where it has a checkpoint.
    """
    recipe = _fit(recipe, digests, context)
    checkpoints = RecipeCheckpoints(recipe, context.announce)
    graphs = _export(recipe, checkpoints, digests, context)
    for side, graph in graphs.items():
        for note in graph.notes:
            context.announce(f"{getattr(recipe, side).source}: {note}")
    recipe = fit_check(recipe, graphs["target"])
    require_usable_prompts(recipe.check, graphs["target"])
    return recipe, graphs


def _fit(recipe: Recipe, digests: Mapping[str, str], context: BuildContext) -> Recipe:
    """`recipe` with the capacity that it leaves to its checkpoints.

    Where one of them has to be loaded, what config and tokenizer say against it is said before that, and before the
    target is traced for a draft that cannot draft for it.
    """
    fitted = fit_capacity(recipe)
    names = ("target",) if recipe.draft.checkpoint is None else ("target", "draft")
    if not context.force and all(is_exported(_canonical_key(fitted, digests, name)) for name in names):
        return fitted
    return outline_recipe(recipe)[0] if isinstance(recipe.target.source, str) else fitted


def _export(
    recipe: Recipe, checkpoints: RecipeCheckpoints, digests: Mapping[str, str], context: BuildContext
) -> dict[str, CanonicalGraph]:
    # The draft first: one that does not fit is refused before the minutes that tracing a large target takes.
    draft = recipe.draft.export(recipe, checkpoints, digests, context)
    target = _export_model(recipe, checkpoints, digests, "target", context)
    if draft is None and recipe.draft.checkpoint is not None:
        draft = _export_model(recipe, checkpoints, digests, "draft", context)
        target_side, draft_side = (
            (graph.name, graph.tokenizer, graph.facts.vocab_size) for graph in (target, draft)
        )
        require_shared_vocabulary(target_side, draft_side)
    return {"target": target} if draft is None else {"target": target, "draft": draft}


def _canonical_key(recipe: Recipe, digests: Mapping[str, str], name: str) -> str:
    return canonical_key(
        digests[name],
        precision=recipe.precision,
        capacity=recipe.draft_capacity if name == "draft" else recipe.capacity,
        reference_tokens=recipe.parity.tokens,
    )


def _export_model(
    recipe: Recipe,
    checkpoints: RecipeCheckpoints,
    digests: Mapping[str, str],
    name: str,
    context: BuildContext,
) -> CanonicalGraph:
    with naming_source(name):
        return export_canonical(
            _canonical_key(recipe, digests, name),
            checkpoints.loader(name),
            capacity=recipe.draft_capacity if name == "draft" else recipe.capacity,
            reference_tokens=recipe.parity.tokens,
            force=context.force,
        )


def graph_requests(
    recipe: Recipe, canonical: Mapping[str, CanonicalGraph], backend: BackendBuild
) -> dict[str, GraphRequest]:
    """Return the graphs of a recipe by name: "target", and "draft" where something with a graph of its own drafts.

    `canonical` are those of its checkpoints. Raises `CheckpointUnsupported` where a draft cannot do what the recipe
    asks of it.
    """
    asked = recipe.draft.plan(canonical, runs_parts=backend.runs_parts)
    windows = target_profiles(recipe.verify_widths, recipe.prefill_chunk)
    found = {"target": GraphRequest(canonical["target"], asked.target, windows)}
    if asked.draft is not None:
        windows = recipe.draft.windows(recipe.prefill_chunk, ())
        found["draft"] = GraphRequest(canonical[asked.of], asked.draft, windows)
    return {name: _with_weights(each, recipe.weights_of(name)) for name, each in found.items()}


def _with_weights(request: GraphRequest, weights: Weights | None) -> GraphRequest:
    return replace(
        request, plan=replace(request.plan, weights=weights.plan() if weights is not None else None)
    )
