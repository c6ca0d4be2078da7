"""The pass list that turns the canonical graph into the one a plan asks for, before any backend's passes."""

from specexport.graph_plan import GraphPlan
from specexport.passes import GraphPass
from specexport.passes.features import DropHiddenStates, MakeFeatures
from specexport.passes.fused_draft import FuseDraftSteps
from specexport.passes.layer_path import AddDraftPath, KeepLayers


def plan_passes(plan: GraphPlan) -> tuple[GraphPass, ...]:
    """Features, the path or choice of layers, fused steps; hidden states that no pass took are dropped."""
    passes: list[GraphPass] = []
    if plan.features is not None:
        passes.append(MakeFeatures(plan.features))
    if plan.draft_layers:
        passes.append(AddDraftPath(plan.draft_layers))
    if plan.kept_layers:
        passes.append(KeepLayers(plan.kept_layers))
    passes.append(DropHiddenStates())
    if plan.fused_steps:
        passes.append(FuseDraftSteps(plan.fused_steps))
    return tuple(passes)
