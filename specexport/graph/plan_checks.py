"""Whether a canonical graph can be what a plan asks for, and what each of its windows computes then."""

from collections.abc import Sequence

from specexport.errors import CheckpointUnsupported
from specexport.export import hidden_names
from specexport.graph.canonical import CanonicalGraph
from specexport.graph.files import PATH_NAME
from specexport.graph.plan import DRAFT_PROFILE, FeatureSpec, GraphPlan
from specexport.passes import PassReport
from specexport.passes.layer_path import AddDraftPath, KeepLayers, full_outputs, path_outputs
from specruntime.manifest.schema import Profile


def check_plan(plan: GraphPlan, canonical: CanonicalGraph) -> None:
    """Raise `CheckpointUnsupported` where the target has not what the draft asks of it; both sides are named."""
    layers = plan.draft_layers or plan.kept_layers
    if not (layers or plan.features is not None):
        return
    if canonical.hidden_size is None:
        raise CheckpointUnsupported(f"the draft needs hidden states of the target: {canonical.no_hidden}")
    depth = canonical.facts.layers
    assert not layers or (layers[-1] < depth and len(layers) < depth), "some of the target's layers draft"
    if plan.features is not None:
        _check_features(plan.features, canonical, canonical.hidden_size)


def _check_features(features: FeatureSpec, canonical: CanonicalGraph, hidden_size: int) -> None:
    known = hidden_names(canonical.facts.layers)
    for tap in features.taps:
        if tap not in known:
            raise CheckpointUnsupported(
                f"the draft reads {tap}, but {canonical.name} has {known[0]} to {known[-2]} and {known[-1]}"
            )
    if features.projection is not None:
        found, expected = features.projection.shape[1], len(features.taps) * hidden_size
        if found != expected:
            raise CheckpointUnsupported(
                f"the draft projects {found} numbers, but {len(features.taps)} hidden states of {canonical.name} are "
                f"{expected}: the draft is for another target"
            )


def require_layers(reports: Sequence[PassReport]) -> None:
    """Raise `CheckpointUnsupported` where a pass found that the layers cannot be identified."""
    for report in reports:
        if report.name in (AddDraftPath.name, KeepLayers.name) and report.reasons:
            raise CheckpointUnsupported(
                f"the draft skips layers of the target, which cannot be cut: {report.reasons[0]}"
            )


def plan_profiles(
    plan: GraphPlan, outputs: Sequence[str], profiles: tuple[Profile, ...]
) -> tuple[Profile, ...]:
    """`profiles`, and with a draft path one more for it: each window then computes one of the two paths."""
    if not plan.draft_layers:
        return profiles
    full = full_outputs(outputs)
    path = path_outputs(outputs, plan.draft_layers)
    draft = Profile(name=DRAFT_PROFILE, width=1, rows=1, outputs=path, file=PATH_NAME)
    return (
        *(p if p.outputs is not None else p.model_copy(update={"outputs": full}) for p in profiles),
        draft,
    )
