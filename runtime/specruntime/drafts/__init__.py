"""The kinds of draft, and the making of the draft that a manifest describes.

A kind is one module here: its section of the manifest, its check against the target, the contract of its graph, its
proposer, and what it is expected to cost. `register` adds one that another distribution or a test brings.
"""

from collections.abc import Callable

from specruntime.drafts.draft import NOTHING, Draft, Proposal, Room, Verdict
from specruntime.drafts.eagle import EagleDraft
from specruntime.drafts.kind import ChainSpec, DraftSpec, add_kind
from specruntime.drafts.layer_skip import LayerSkipDraft
from specruntime.drafts.lookup import NgramDraft, NoneDraft
from specruntime.drafts.medusa import MedusaDraft
from specruntime.drafts.model import ModelDraft
from specruntime.engines.protocol import Context
from specruntime.errors import InvalidArgument

__all__ = [
    "ENTRY_POINTS",
    "KINDS",
    "NOTHING",
    "ChainSpec",
    "Draft",
    "DraftSpec",
    "EagleDraft",
    "LayerSkipDraft",
    "MedusaDraft",
    "ModelDraft",
    "NgramDraft",
    "NoneDraft",
    "Proposal",
    "Room",
    "Verdict",
    "find_kind",
    "new_draft",
    "register",
]

ENTRY_POINTS = "specruntime.drafts"  # group in which other distributions name their kinds
KINDS: list[type[DraftSpec]] = [NoneDraft, NgramDraft, ModelDraft, LayerSkipDraft, MedusaDraft, EagleDraft]


def register(kind: type[DraftSpec]) -> Callable[[], None]:
    """Add a kind: manifests may have its section from now on. What is returned takes it out again.

    Raises `InvalidArgument` where another kind has one of its names.
    """
    return add_kind(KINDS, kind, _renew_schema)


def find_kind(name: str) -> None:
    """Register the kind of that name that an installed distribution offers as an entry point, if one does."""
    if any(name in kind.names() for kind in KINDS):
        return
    from importlib.metadata import entry_points  # only here: it takes as long as the rest of the import

    for entry in entry_points(group=ENTRY_POINTS, name=name):
        register(entry.load())
        return


def _renew_schema() -> None:
    from specruntime.manifest.schema import Manifest  # which imports the kinds

    Manifest.model_rebuild(force=True)


def new_draft(
    spec: DraftSpec, context: Context | None, vocab_size: int, *, target: Context | None = None
) -> Draft:
    """Return the draft that `spec` describes; `context` is a fresh one of its graph, None for drafts without a graph.

    `vocab_size` is the target's; raises `InvalidArgument` when the draft's graph has another. `target` is the
    session's own context, through which some kinds draft and which none closes.
    """
    if context is not None and context.spec.vocab_size != vocab_size:
        raise InvalidArgument(
            f"the draft {context.spec.file} has {context.spec.vocab_size} tokens, the target {vocab_size}: "
            "draft and target must share one tokenizer"
        )
    return spec.proposer(context, target, vocab_size)
