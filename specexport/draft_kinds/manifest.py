"""What the manifest says of a recipe's draft: its kind, lengths, tree and graph, and the times of a dynamic length."""

from collections.abc import Mapping

from specexport.draft_kinds.windows import LAW_SUFFIX
from specexport.draft_models.tapped_layers import TappedFeatures
from specexport.graph.plan_checks import DRAFT_PROFILE
from specexport.recipe.schema import (
    Draft,
    EagleDraft,
    LayerSkipDraft,
    MedusaDraft,
    ModelDraft,
    NgramDraft,
    NoneDraft,
)
from specexport.recipe.trees import Lengths
from specexport.trees import Tree
from specruntime import drafts as manifest
from specruntime.drafts import DraftSpec
from specruntime.drafts.eagle import DynamicTree, TappedLayers
from specruntime.manifest.schema import AdaptiveSpec, GraphSpec, TreeSpec


def draft_spec(draft: Draft, graph: GraphSpec | None, tapped: TappedFeatures | None = None) -> DraftSpec:
    """The manifest's entry; `graph` is the draft's own, None for kinds without one, `tapped` what an EAGLE-3 reads."""
    match draft:
        case NgramDraft():
            return manifest.NgramDraft(k=draft.k, max_n=draft.max_n, min_n=draft.min_n)
        case LayerSkipDraft():
            return manifest.LayerSkipDraft(k=draft.k, layers=draft.kept_layers, graph=graph)
        case NoneDraft():
            return manifest.NoneDraft()
    assert graph is not None, "these kinds have a graph of their own"
    match draft:
        case ModelDraft():
            return manifest.ModelDraft(k=draft.k, fused=draft.fused, stop_below=draft.stop_below, graph=graph)
        case MedusaDraft():
            return manifest.MedusaDraft(heads=_heads(graph), tree=_tree(draft.shape), graph=graph)
        case EagleDraft():
            dynamic = draft.dynamic_tree
            return manifest.EagleDraft(
                kind=draft.kind,
                k=draft.depth,
                tree=_tree(draft.shape) if draft.shape is not None else None,
                dynamic=DynamicTree(nodes=dynamic.nodes, branch=dynamic.branch) if dynamic else None,
                stop_below=draft.stop_below,
                tapped=TappedLayers(entering=tapped.entering, reason=tapped.reason) if tapped else None,
                graph=graph,
            )


def adaptive_spec(draft: Draft, times: Mapping[str, Mapping[str, float]]) -> AdaptiveSpec | None:
    """What a dynamic length starts from; `times` are milliseconds by profile, of each graph by name."""
    if isinstance(draft, NoneDraft) or not draft.adaptive:
        return None
    target, own = times["target"], times.get("draft", {})
    if isinstance(draft, LayerSkipDraft) and "draft" not in times:
        own = {name: ms for name, ms in target.items() if name == DRAFT_PROFILE}
    lookup = draft.lookup if isinstance(draft, Lengths) else None
    return AdaptiveSpec(
        step_ms={name: ms for name, ms in target.items() if name != DRAFT_PROFILE},
        draft_ms={name: ms for name, ms in own.items() if not name.endswith(LAW_SUFFIX)},
        lookup=manifest.NgramDraft(k=lookup.k, max_n=lookup.max_n, min_n=lookup.min_n) if lookup else None,
    )


def _tree(tree: Tree) -> TreeSpec:
    return TreeSpec(parents=tree.parents, ranks=tree.ranks)


def _heads(graph: GraphSpec) -> int:
    """[B, R, heads, K]"""
    heads = next(tensor.shape[2] for tensor in graph.outputs if tensor.name == "topk_ids")
    assert isinstance(heads, int), "the number of heads is static"
    return heads
