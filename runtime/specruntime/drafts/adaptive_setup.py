"""What an adaptive draft knows when a session opens: sizes it may ask for, and the times the build host measured."""

from collections.abc import Sequence
from math import log2

from specruntime.draft_spec import (
    DraftSpec,
    EagleDraft,
    MedusaDraft,
    ModelDraft,
    NgramDraft,
    NoneDraft,
    grows_trees,
)
from specruntime.drafts import Draft
from specruntime.drafts.adaptive import AdaptiveDraft, Arm
from specruntime.drafts.lengths import Acceptance, StepTimes, TreeAcceptance
from specruntime.drafts.ngram import NgramProposer
from specruntime.manifest import AdaptiveSpec, GraphSpec, Manifest

# Rates of the first positions and of all further ones before anything is known. What was copied goes on to be copied.
TRAINED_PRIOR, LOOKUP_PRIOR = (0.6,), (0.5, 0.7, 0.85)
LOOKUP_MEMORY = 8.0  # a text that begins or ends to repeat itself does so at once
# Accepted drafts of a tree of n nodes are about this times log2(1 + n) where trained drafts do middling well.
TREE_PRIOR = 0.45
# Where the build host measured nothing: a window of width w in plain steps, and drafting one token.
GUESSED_ROW, GUESSED_DRAFT = 1 / 40, 0.1
GUESSED_PLAIN = 0.02  # seconds of a plain step; the first one measured replaces it


def adaptive_draft(draft: Draft, manifest: Manifest) -> AdaptiveDraft:
    """Wraps the draft of an adaptive bundle, with prompt lookup beside it where the manifest says so."""
    spec = manifest.adaptive
    assert spec is not None, "the manifest says that the length is dynamic"
    verify = _verify_seconds(spec, manifest.target)
    arms = [_arm(draft, spec, manifest, sorted(verify), verify[1])]
    if spec.lookup is not None:
        found = spec.lookup
        arms.insert(0, _lookup(NgramProposer(k=found.k, max_n=found.max_n, min_n=found.min_n)))
    return AdaptiveDraft(arms, StepTimes(verify))


def _verify_seconds(spec: AdaptiveSpec, target: GraphSpec) -> dict[int, float]:
    """Of the windows that judge drafts, and of a plain step, by width."""
    profiles = [p for p in target.profiles if p.rows == p.width and p.computes("top_ids")]
    known = {p.width: 1e-3 * spec.step_ms[p.name] for p in profiles if p.name in spec.step_ms}
    plain = known.get(1, GUESSED_PLAIN)
    guessed = {p.width: plain * (1 + GUESSED_ROW * (p.width - 1)) for p in profiles}
    return {1: plain} | guessed | known


def _arm(draft: Draft, spec: AdaptiveSpec, manifest: Manifest, widths: Sequence[int], plain: float) -> Arm:
    described = manifest.draft
    if isinstance(described, NgramDraft):
        return _lookup(draft)
    assert not isinstance(described, NoneDraft), "manifests with a dynamic length and no draft are refused"
    if not grows_trees(described):
        sizes: Sequence[int] = range(1, described.k + 1)
        acceptance: Acceptance | TreeAcceptance = Acceptance(described.k, TRAINED_PRIOR)
    else:
        sizes = sorted({min(width - 1, described.nodes) for width in widths if width > 1})
        acceptance = TreeAcceptance(sizes, [TREE_PRIOR * log2(1 + size) for size in sizes])
    seconds = {size: _draft_seconds(described, spec, size, plain) for size in sizes}
    return Arm(draft, acceptance, StepTimes(seconds))


def _lookup(draft: Draft) -> Arm:
    return Arm(draft, Acceptance(draft.k, LOOKUP_PRIOR, memory=LOOKUP_MEMORY), None)


def _draft_seconds(draft: DraftSpec, spec: AdaptiveSpec, size: int, plain: float) -> float:
    """A first estimate for drafting `size` tokens; sessions measure it."""
    times = [1e-3 * ms for ms in spec.draft_ms.values()]
    step = min(times, default=GUESSED_DRAFT * plain)
    if isinstance(draft, MedusaDraft) or (isinstance(draft, ModelDraft) and draft.fused):
        return step
    if isinstance(draft, EagleDraft) and grows_trees(draft):
        levels = (spec.draft_ms.get(f"level_{depth}", 1e3 * step) for depth in range(1, draft.k))
        return step + 1e-3 * sum(levels)
    return size * step
