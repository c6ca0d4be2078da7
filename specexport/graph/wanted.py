"""Which graphs a recipe needs, of what each is made, and at which windows it runs: one `GraphRequest` each."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from specexport.backends import BackendBuild
from specexport.cache.context import BuildContext
from specexport.checkpoints.check_prompts import require_usable_prompts
from specexport.checkpoints.fitting import fit_capacity, fit_check
from specexport.checkpoints.named import RecipeCheckpoints, feature_draft_name
from specexport.checkpoints.outline import outline_recipe
from specexport.checkpoints.vocabulary import require_shared_vocabulary
from specexport.draft_kinds.canonical import (
    canonical_draft_key,
    export_canonical_draft,
    read_features,
    read_tapped,
)
from specexport.draft_kinds.windows import candidate_count, eagle_profiles, medusa_profiles
from specexport.errors import CheckpointUnsupported
from specexport.graph.canonical import CanonicalGraph, canonical_key, export_canonical, is_exported
from specexport.graph.compiled import CompiledGraph
from specexport.graph.files import draft_profiles, fused_draft_profiles, prefill_ladder, target_profiles
from specexport.graph.plan import GraphPlan
from specexport.recipe.naming import naming_source
from specexport.recipe.schema import EagleDraft, LayerSkipDraft, MedusaDraft, ModelDraft, Recipe
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
    names = ("target", "draft") if isinstance(recipe.draft, ModelDraft) else ("target",)
    if not context.force and all(is_exported(_canonical_key(fitted, digests, name)) for name in names):
        return fitted
    return outline_recipe(recipe)[0] if isinstance(recipe.target.source, str) else fitted


def _export(
    recipe: Recipe, checkpoints: RecipeCheckpoints, digests: Mapping[str, str], context: BuildContext
) -> dict[str, CanonicalGraph]:
    if isinstance(recipe.draft, (EagleDraft, MedusaDraft)):
        # The draft first: one that does not fit is refused before the minutes that tracing a large target takes.
        drafting = _export_feature_draft(recipe, recipe.draft, checkpoints, digests, context)
        if (tapped := read_tapped(drafting)) is not None and tapped.doubt is not None:
            context.announce(f"warning: {tapped.doubt}")
        return {
            "target": _export_model(recipe, checkpoints, digests, "target", context),
            "draft": drafting,
        }
    graphs = {name: _export_model(recipe, checkpoints, digests, name, context) for name in digests}
    sides = [(graph.name, graph.tokenizer, graph.facts.vocab_size) for graph in graphs.values()]
    for draft in sides[1:]:
        require_shared_vocabulary(sides[0], draft)
    return graphs


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


def _export_feature_draft(
    recipe: Recipe,
    draft: EagleDraft | MedusaDraft,
    checkpoints: RecipeCheckpoints,
    digests: Mapping[str, str],
    context: BuildContext,
) -> CanonicalGraph:
    candidates, tokens = candidates_of(draft), recipe.parity.tokens
    key = canonical_draft_key(
        digests["draft"],
        digests["target"],
        precision=recipe.precision,
        capacity=recipe.draft_capacity,
        candidates=candidates,
        reference_tokens=tokens,
    )
    return export_canonical_draft(
        key,
        checkpoints.load_feature_draft,
        name=feature_draft_name(draft),
        capacity=recipe.draft_capacity,
        candidates=candidates,
        reference_tokens=tokens,
        force=context.force,
    )


def graph_requests(
    recipe: Recipe, canonical: Mapping[str, CanonicalGraph], backend: BackendBuild
) -> dict[str, GraphRequest]:
    """The graphs of a recipe by name: "target", and "draft" where something with a graph of its own drafts.

    `canonical` are those of its checkpoints. Raises `CheckpointUnsupported` where a draft cannot do what the recipe
    asks of it.
    """
    draft = recipe.draft
    target = GraphPlan()
    requests: dict[str, GraphRequest] = {}
    if isinstance(draft, (EagleDraft, MedusaDraft)):
        target = GraphPlan(trees=proposes_trees(draft), features=read_features(canonical["draft"]))
        requests["draft"] = _feature_draft(recipe, draft, canonical["draft"])
    if isinstance(draft, ModelDraft):
        plan = GraphPlan(fused_steps=draft.k if draft.fused else 0)
        profiles = (fused_draft_profiles if draft.fused else draft_profiles)(recipe.prefill_chunk)
        requests["draft"] = GraphRequest(canonical["draft"], plan, profiles)
    if isinstance(draft, LayerSkipDraft):
        if backend.runs_parts:
            target = GraphPlan(draft_layers=draft.kept_layers)
        else:  # the layers are copied into an engine of their own
            plan = GraphPlan(kept_layers=draft.kept_layers)
            requests["draft"] = GraphRequest(canonical["target"], plan, draft_profiles(recipe.prefill_chunk))
    windows = target_profiles(recipe.verify_widths, recipe.prefill_chunk)
    found = {"target": GraphRequest(canonical["target"], target, windows), **requests}
    return {name: _with_weights(each, recipe.weights_of(name)) for name, each in found.items()}


def _with_weights(request: GraphRequest, weights: Weights | None) -> GraphRequest:
    return replace(
        request, plan=replace(request.plan, weights=weights.plan() if weights is not None else None)
    )


def proposes_trees(draft: EagleDraft | MedusaDraft) -> bool:
    """Whether the windows that judge this draft are trees; heads always propose one, be it a chain."""
    return isinstance(draft, MedusaDraft) or draft.k is None


def candidates_of(draft: EagleDraft | MedusaDraft) -> int:
    """Tokens that the draft's graph names for each row."""
    if isinstance(draft, EagleDraft) and draft.dynamic_tree is not None:
        return candidate_count((), draft.dynamic_tree.branch)
    return candidate_count(draft.shape.ranks if draft.shape is not None else ())


def with_named_outputs(compiled: CompiledGraph, recipe: Recipe) -> CompiledGraph:
    """`compiled` with windows that compute only what their use needs;
    for a backend that can leave outputs out."""
    if not isinstance(recipe.draft, EagleDraft):
        return compiled
    profiles = _eagle_windows(
        recipe, recipe.draft, tuple(tensor.name for tensor in compiled.spec.outputs), selective=True
    )
    return replace(compiled, spec=compiled.spec.model_copy(update={"profiles": profiles}))


def _feature_draft(
    recipe: Recipe, draft: EagleDraft | MedusaDraft, canonical: CanonicalGraph
) -> GraphRequest:
    if isinstance(draft, EagleDraft):
        windows = _eagle_windows(recipe, draft, (), selective=False)
        return GraphRequest(canonical, GraphPlan(trees=proposes_trees(draft)), windows)
    if draft.depth > (canonical.heads or 0):
        key = "draft.k" if draft.tree is None else "the depth of draft.tree"
        raise CheckpointUnsupported(
            f"found {draft.depth}, expected at most {canonical.heads}, the heads of {canonical.name}: each "
            "drafts the tokens of one depth",
            key=key,
        )
    return GraphRequest(canonical, GraphPlan(), medusa_profiles())


def _eagle_windows(
    recipe: Recipe, draft: EagleDraft, outputs: tuple[str, ...], *, selective: bool
) -> tuple[Profile, ...]:
    return eagle_profiles(
        outputs,
        prefill_ladder(recipe.prefill_chunk),
        k=draft.depth,
        tree=draft.shape,
        branch=draft.dynamic_tree.branch if draft.dynamic_tree is not None else 0,
        selective=selective,
    )
