"""What a draft is: something that proposes the tokens that may follow, as a chain or as a tree.

A draft sees the committed tokens, and of the target what `observe` tells it. It derives from the tokens what it has
not seen yet, so a round that committed fewer tokens than it proposed needs no message of its own.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

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
from specruntime.sampling.sampler import Sampler
from specruntime.statistics import EngineTally


@dataclass(frozen=True, slots=True)
class Room:
    """How much one round can use of a proposal; both 0 or more. A chain of n tokens takes n of either."""

    depth: int  # the most tokens that may be accepted
    nodes: int  # the most drafted tokens one target window judges


@dataclass(frozen=True, slots=True)
class Proposal:
    """Drafted ids [n], n >= 0: node i is window row i + 1; row 0 is the last committed token.

    `parents` [n] is the window row of each node's parent, an earlier row; None: a chain. `ranks` [n] says which of the
    parent's candidates a node is, 0 the most likely; None: nothing is known of it, a chain's are 0.
    `probabilities` is None when the ids are a function of tokens, features and seed. Of a chain: [n, vocab], the law
    each id was drawn from. Of a tree: [n + 1, vocab], row i the law that the first child of window row i was drawn
    from, its siblings after it from the same law without those before them, in window order.
    """

    ids: NDArray[np.int64]
    probabilities: NDArray[np.float32] | None = None
    parents: NDArray[np.int64] | None = None
    ranks: NDArray[np.int64] | None = None


NOTHING = Proposal(np.empty(0, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one target window did, told to the draft before its tokens are committed."""

    start: int  # position of the first kept row
    features: (
        NDArray[np.float32] | None
    )  # [kept, F] of positions start.., valid during the call; None: the graph has none
    kept: int  # rows that stay in the cache: the whole chunk, or row 0 and the accepted ones
    proposal: Proposal | None  # that was judged, of no ids in a plain step; None for a chunk of a prompt
    path: tuple[int, ...]  # accepted window rows, ascending, without row 0
    width: int  # of the window
    draft_seconds: float
    verify_seconds: float


class Draft(Protocol):
    """Proposes continuations of one sequence. Not thread-safe."""

    k: int  # the most tokens a round can accept of its proposals
    tally: EngineTally  # where it books its engine calls; the session replaces it with each answer

    def propose(self, tokens: NDArray[np.int64], room: Room, sampler: Sampler) -> Proposal:
        """What may follow `tokens` (all committed ids, a view that is only read), within `room` and `k`.

        Raises `EngineFailed` when its own engine fails; only `reset` and `close` are defined then. Raises
        `InvalidArgument`, between engine calls and with all it holds still sound, when every token is banned.
        """
        ...

    def observe(self, verdict: Verdict) -> None:
        """Told after every target window; drafts without state ignore it.

        Positions seen before come again after `rewind` and after a round that found every token banned: what is told
        last counts. Raises `EngineFailed` as `propose` does.
        """
        ...

    def start_from(self, source: "Draft", length: int) -> None:
        """Takes over, right after `reset`, what `source` knows of its first `length` tokens, which are this one's too.

        `source` is a sound draft of another session of the same bundle. Raises `EngineFailed` as `propose` does.
        """
        ...

    def rewind(self, length: int) -> None:
        """Forgets every token from index `length` on."""
        ...

    def reset(self) -> None:
        """Forgets everything, a failure too."""
        ...

    def close(self) -> None:
        """Frees its buffers. Idempotent."""
        ...


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
