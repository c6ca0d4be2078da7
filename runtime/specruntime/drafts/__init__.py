"""The kinds of draft, and the making of the draft that a manifest describes."""

from specruntime.drafts.draft import NOTHING, Draft, Proposal, Room, Verdict
from specruntime.engines.protocol import Context
from specruntime.errors import InvalidArgument
from specruntime.manifest.schema import (
    DraftSpec,
    EagleDraft,
    LayerSkipDraft,
    MedusaDraft,
    ModelDraft,
    NgramDraft,
    NoneDraft,
)

__all__ = ["NOTHING", "Draft", "Proposal", "Room", "Verdict", "new_draft"]


def new_draft(
    spec: DraftSpec, context: Context | None, vocab_size: int, *, target: Context | None = None
) -> Draft:
    """The draft that `spec` describes; `context` is a fresh one of its graph, None for kinds without a graph.

    `vocab_size` is the target's; raises `InvalidArgument` when the draft's graph has another. `target` is the
    session's own context: `layer_skip` without a graph of its own drafts through it and never closes it.
    """
    from specruntime.drafts.lookup import NgramProposer, NoProposer

    if isinstance(spec, NoneDraft):
        return NoProposer()
    if isinstance(spec, NgramDraft):
        return NgramProposer(k=spec.k, max_n=spec.max_n, min_n=spec.min_n)
    if isinstance(spec, LayerSkipDraft) and spec.graph is None:
        from specruntime.drafts.layer_skip import LayerSkipProposer

        assert target is not None, "who opens a layer_skip draft hands it the session's context"
        return LayerSkipProposer(target, spec)
    assert context is not None, "who opens a draft with a graph hands it a context of that graph"
    if context.spec.vocab_size != vocab_size:
        raise InvalidArgument(
            f"the draft {context.spec.file} has {context.spec.vocab_size} tokens, the target {vocab_size}: "
            "draft and target must share one tokenizer"
        )
    return _with_graph(spec, context, vocab_size)


def _with_graph(
    spec: ModelDraft | LayerSkipDraft | MedusaDraft | EagleDraft, context: Context, vocab_size: int
) -> Draft:
    from specruntime.drafts.model import FusedProposer, ModelProposer

    if isinstance(spec, EagleDraft):
        from specruntime.drafts.eagle import EagleProposer

        return EagleProposer(context, spec, vocab_size=vocab_size)
    if isinstance(spec, MedusaDraft):
        from specruntime.drafts.medusa import MedusaProposer

        return MedusaProposer(context, spec)
    if isinstance(spec, LayerSkipDraft):
        return ModelProposer(context, k=spec.k)
    return (
        FusedProposer(context, k=spec.k)
        if spec.fused
        else ModelProposer(context, k=spec.k, stop_below=spec.stop_below)
    )
