"""Which graphs a recipe needs, of what each is made, and at which windows it runs: one `GraphRequest` each.

The one place that knows what every kind of draft asks of the target's graph and of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from specexport.draft_kinds.canonical import read_features
from specexport.draft_kinds.windows import candidate_count, eagle_profiles, medusa_profiles
from specexport.errors import CheckpointUnsupported
from specexport.graph.canonical import CanonicalGraph
from specexport.graph.compiled import CompiledGraph
from specexport.graph.files import draft_profiles, fused_draft_profiles, prefill_ladder, target_profiles
from specexport.graph.plan import GraphPlan
from specexport.recipe.schema import EagleDraft, LayerSkipDraft, MedusaDraft, ModelDraft, Recipe
from specexport.recipe.weights import Weights
from specexport.tensorrt.options import TensorRTBackend
from specruntime.manifest.schema import Profile


@dataclass(frozen=True)
class GraphRequest:
    """A graph that the backend must make: the variant `plan` of `canonical`, run at `profiles`."""

    canonical: CanonicalGraph
    plan: GraphPlan
    profiles: tuple[Profile, ...]


def graph_requests(recipe: Recipe, canonical: Mapping[str, CanonicalGraph]) -> dict[str, GraphRequest]:
    """The graphs of a recipe by name: "target", and "draft" where something with a graph of its own drafts.

    `canonical` are those of its checkpoints. Raises `CheckpointUnsupported` where a draft cannot do what the recipe
    asks of it.
    """
    draft, backend = recipe.draft, recipe.backend
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
        if isinstance(
            backend, TensorRTBackend
        ):  # an engine computes all it has: the layers are copied into their own
            plan = GraphPlan(kept_layers=draft.kept_layers)
            requests["draft"] = GraphRequest(canonical["target"], plan, draft_profiles(recipe.prefill_chunk))
        else:
            target = GraphPlan(draft_layers=draft.kept_layers)
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
    """`compiled` with windows that compute only what their use needs, where the backend can leave outputs out."""
    if not isinstance(recipe.draft, EagleDraft) or isinstance(recipe.backend, TensorRTBackend):
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
