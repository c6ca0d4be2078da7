"""What must agree between a draft and the target it drafts for: lengths, trees, layers, tensors of both graphs.

Each check raises `BundleInvalid` naming the key and both values. Reads no files.
"""

from collections.abc import Sequence
from itertools import pairwise

from specruntime.manifest.contracts import EAGLE, MEDUSA, MODEL, Contract
from specruntime.manifest.schema import (
    AdaptiveSpec,
    DraftSpec,
    EagleDraft,
    GraphSpec,
    LayerSkipDraft,
    Manifest,
    MedusaDraft,
    ModelDraft,
    NgramDraft,
    NoneDraft,
    Profile,
    TreeSpec,
    draft_graph,
)
from specruntime.manifest.tensor_checks import refuse

DraftingSpec = NgramDraft | ModelDraft | LayerSkipDraft | MedusaDraft | EagleDraft
SELF_PROFILE = "draft"  # of a target that drafts for itself
HEADS_PROFILE = "heads"  # of medusa heads
STEP_PROFILE = "step"  # of an eagle layer


def contract_of(draft: DraftSpec) -> Contract:
    """What the draft's own graph must look like."""
    if isinstance(draft, EagleDraft):
        return EAGLE
    return MEDUSA if isinstance(draft, MedusaDraft) else MODEL


def check_draft(manifest: Manifest) -> None:
    """Checks the draft against the target; both graphs have been checked by themselves."""
    target, draft = manifest.target, manifest.draft
    if isinstance(draft, NgramDraft) and draft.min_n > draft.max_n:
        refuse(f"draft.min_n is {draft.min_n}, above draft.max_n {draft.max_n}")
    if isinstance(draft, ModelDraft):
        _check_model(draft)
    if isinstance(draft, LayerSkipDraft):
        _check_layer_skip(target, draft)
    if isinstance(draft, MedusaDraft):
        _check_medusa(target, draft)
    if isinstance(draft, EagleDraft):
        _check_eagle(target, draft)
    if not isinstance(draft, NoneDraft):
        _check_room(target, draft)
    if manifest.adaptive is not None:
        _check_adaptive(manifest.adaptive, target, draft)


def _check_model(draft: ModelDraft) -> None:
    drafted = draft.graph.drafted
    expected = draft.k if draft.fused else 1
    if drafted != expected:
        refuse(
            f"draft: its graph drafts {drafted} tokens a launch, expected {expected} (fused: {draft.fused})"
        )
    if draft.fused and draft.stop_below is not None:
        refuse(
            f"draft.stop_below is {draft.stop_below} for a fused draft, whose steps are one launch; expected none"
        )


def _check_layer_skip(target: GraphSpec, draft: LayerSkipDraft) -> None:
    layers = draft.layers
    if any(later <= earlier for earlier, later in pairwise(layers)):
        refuse(f"draft.layers is {list(layers)}, expected ascending layers, each once")
    if layers[-1] >= target.layers:
        refuse(f"draft.layers has {layers[-1]}, but the target has layers 0 to {target.layers - 1}")
    if len(layers) == target.layers:
        refuse(f"draft.layers has all {len(layers)} layers of the target, expected fewer")
    if draft.graph is not None:
        if draft.graph.layers != len(layers):
            refuse(f"draft.graph has {draft.graph.layers} layers, but draft.layers names {len(layers)}")
        return
    profile = _profile(target, SELF_PROFILE, "target")
    for output in ("draft_logits", "draft_top_ids"):
        if output not in (tensor.name for tensor in target.outputs) or not profile.computes(output):
            refuse(f"draft.graph is not given, and the target's profile 'draft' does not compute {output!r}")
    _check_one_row(profile, "target")


def _check_medusa(target: GraphSpec, draft: MedusaDraft) -> None:
    _check_one_row(_profile(draft.graph, HEADS_PROFILE, "draft.graph"), "draft.graph")
    heads, candidates = _topk_sizes(draft.graph)
    if draft.heads != heads:
        refuse(f"draft.heads is {draft.heads}, but topk_ids of its graph has {heads}")
    _check_tree(target, draft.tree, candidates)
    if draft.tree.depth > draft.heads:
        refuse(
            f"draft.tree is {draft.tree.depth} deep, but there are {draft.heads} heads, one for each depth"
        )
    _check_features(target, draft.graph)


def _check_eagle(target: GraphSpec, draft: EagleDraft) -> None:
    (candidates,) = _topk_sizes(draft.graph)
    if draft.tree is not None and draft.dynamic is not None:
        refuse("draft has both a tree and a dynamic tree, expected one of them or neither")
    if draft.stop_below is not None and not (draft.tree is None and draft.dynamic is None):
        refuse(f"draft.stop_below is {draft.stop_below} beside a tree, expected it for chains only")
    if draft.tree is not None:
        _check_tree(target, draft.tree, candidates)
        if draft.tree.depth != draft.k:
            refuse(f"draft.k is {draft.k}, but draft.tree is {draft.tree.depth} deep")
    if draft.dynamic is not None:
        _check_masked(target)
        if draft.dynamic.branch > candidates:
            refuse(
                f"draft.dynamic.branch is {draft.dynamic.branch}, but its graph names {candidates} candidates"
            )
        if draft.dynamic.nodes < draft.k:
            refuse(f"draft.dynamic.nodes is {draft.dynamic.nodes}, too few for a depth of {draft.k}")
    if draft.k > 1 and draft.tree is None and draft.dynamic is None:
        _check_one_row(_profile(draft.graph, STEP_PROFILE, "draft.graph"), "draft.graph")
    _check_features(target, draft.graph)
    taken, given = _last_size(draft.graph, "hidden"), _last_size(draft.graph, "next_hidden")
    if taken != given:
        refuse(f"draft.graph takes hidden of {taken} and gives next_hidden of {given}, expected one size")


def _check_tree(target: GraphSpec, tree: TreeSpec, candidates: int) -> None:
    if len(tree.parents) != len(tree.ranks):
        refuse(f"draft.tree has {len(tree.parents)} parents and {len(tree.ranks)} ranks, expected as many")
    for node, parent in enumerate(tree.parents):
        if parent > node:
            refuse(
                f"draft.tree: node {node}, window row {node + 1}, has parent row {parent}, expected an earlier"
            )
    siblings = list(zip(tree.parents, tree.ranks, strict=True))
    for node, (parent, rank) in enumerate(siblings):
        if (parent, rank) in siblings[:node]:
            refuse(f"draft.tree: row {parent} has two children of rank {rank}, expected each rank once")
        if rank >= candidates:
            refuse(
                f"draft.tree: node {node} has rank {rank}, but the draft's graph names {candidates} candidates a row"
            )
    _check_masked(target)


def _check_masked(target: GraphSpec) -> None:
    """A tree's rows see their ancestors only, and siblings share a position: both must be inputs."""
    names = {tensor.name for tensor in target.inputs}
    for name in ("window_mask", "position_ids"):
        if name not in names:
            refuse(f"draft has a tree, but the target has no input {name!r}, so it judges chains only")


def _check_features(target: GraphSpec, graph: GraphSpec) -> None:
    """What the target tells of each row is what the draft's layer takes."""
    if all(tensor.name != "features" for tensor in target.outputs):
        refuse("draft.graph takes hidden, but target.outputs has no 'features' to give it")
    given, taken = _last_size(target, "features"), _last_size(graph, "hidden")
    if given != taken:
        refuse(f"target gives features of {given}, but draft.graph takes hidden of {taken}")
    for profile in target.profiles:
        if profile.computes("top_ids") and not profile.computes("features"):
            refuse(f"target: profile {profile.name!r} does not compute the features that the draft needs")


def _topk_sizes(graph: GraphSpec) -> Sequence[int]:
    """The sizes behind [B, R] of topk_ids: [K], or [heads, K]."""
    shapes = {t.name: t.shape[2:] for t in graph.outputs if t.name in ("topk_ids", "topk_logprobs")}
    ids, logprobs = shapes["topk_ids"], shapes["topk_logprobs"]
    if ids != logprobs:
        refuse(f"draft.graph: topk_ids has {list(ids)} candidates, topk_logprobs {list(logprobs)}")
    return [size for size in ids if isinstance(size, int)]


def _last_size(graph: GraphSpec, name: str) -> int:
    tensors = (*graph.inputs, *graph.outputs)
    size = next(tensor.shape[-1] for tensor in tensors if tensor.name == name)
    assert isinstance(size, int), "checked against the graph's contract"
    return size


def _profile(graph: GraphSpec, name: str, label: str) -> Profile:
    found = [profile for profile in graph.profiles if profile.name == name]
    if not found:
        refuse(f"{label} has no profile {name!r}, which this draft runs")
    return found[0]


def _check_one_row(profile: Profile, label: str) -> None:
    if (profile.width, profile.rows) != (1, 1):
        refuse(
            f"{label}: profile {profile.name!r} is {profile.width} wide with {profile.rows} rows, expected 1 and 1"
        )


def _check_room(target: GraphSpec, draft: DraftingSpec) -> None:
    nodes = draft.nodes
    judged = max(profile.rows for profile in target.profiles if profile.computes("top_ids"))
    if nodes + 1 > judged:
        refuse(
            f"{_width_key(draft)} is {nodes}, but the widest target profile judges {judged} rows, and {nodes + 1} "
            "are needed"
        )


def _width_key(draft: DraftingSpec) -> str:
    if isinstance(draft, EagleDraft) and draft.dynamic is not None:
        return "draft.dynamic.nodes"
    tree = draft.tree if isinstance(draft, EagleDraft | MedusaDraft) else None
    return "draft.k" if tree is None else "the number of nodes of draft.tree"


def _check_lookup(lookup: NgramDraft, target: GraphSpec, draft: DraftSpec) -> None:
    if isinstance(draft, NgramDraft):
        refuse(
            "adaptive.lookup is given beside a draft of kind ngram, which is prompt lookup; expected one of them"
        )
    if lookup.min_n > lookup.max_n:
        refuse(f"adaptive.lookup.min_n is {lookup.min_n}, above adaptive.lookup.max_n {lookup.max_n}")
    judged = max(profile.rows for profile in target.profiles if profile.computes("top_ids"))
    if lookup.k + 1 > judged:
        refuse(
            f"adaptive.lookup.k is {lookup.k}, but the widest target profile judges {judged} rows, and "
            f"{lookup.k + 1} are needed"
        )


def _check_adaptive(adaptive: AdaptiveSpec, target: GraphSpec, draft: DraftSpec) -> None:
    if isinstance(draft, NoneDraft):
        refuse("adaptive is given with a draft of kind none, expected a draft whose length can follow it")
    if adaptive.lookup is not None:
        _check_lookup(adaptive.lookup, target, draft)
    graph = draft_graph(draft)
    own = isinstance(draft, LayerSkipDraft) and graph is None
    for key, times, profiles in (
        ("step_ms", adaptive.step_ms, target.profiles),
        ("draft_ms", adaptive.draft_ms, target.profiles if own else graph.profiles if graph else ()),
    ):
        named = {profile.name for profile in profiles}
        if odd := sorted(times.keys() - named):
            refuse(
                f"adaptive.{key} names {odd[0]!r}, expected one of {', '.join(sorted(named)) or 'no name'}"
            )
