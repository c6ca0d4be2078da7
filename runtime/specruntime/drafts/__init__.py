"""What a draft is: something that proposes the tokens that may follow.

A draft sees the committed tokens and nothing of the target's cache. It derives from them what it has not seen yet, so
a round that committed fewer tokens than it proposed needs no message.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from specruntime.engine import Context
from specruntime.errors import InvalidArgument
from specruntime.manifest import DraftSpec, ModelDraft, NgramDraft, NoneDraft
from specruntime.sampling import Sampler
from specruntime.statistics import EngineTally


@dataclass(frozen=True, slots=True)
class Proposal:
    """Drafted ids [n], n >= 0, and the law each was drawn from: [n, vocab] float32, None when deterministic."""

    ids: NDArray[np.int64]
    probabilities: NDArray[np.float32] | None = None


NOTHING = Proposal(np.empty(0, dtype=np.int64))


class Draft(Protocol):
    """Proposes continuations of one sequence. Not thread-safe."""

    k: int  # the most tokens it ever proposes
    tally: EngineTally  # where it books its engine calls; the session replaces it with each answer

    def propose(self, tokens: NDArray[np.int64], limit: int, sampler: Sampler) -> Proposal:
        """At most `min(limit, k)` ids to follow `tokens` (all committed ids, a view that is only read).

        Raises `EngineFailed` when its own engine fails; only `reset` and `close` are defined then. Raises
        `InvalidArgument`, between engine calls and with all it holds still sound, when every token is banned.
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


def new_draft(spec: DraftSpec, context: Context | None, vocab_size: int) -> Draft:
    """The draft that `spec` describes; `context` is a fresh one of its graph, None for kinds without a graph.

    `vocab_size` is the target's; raises `InvalidArgument` when a draft model's vocabulary is another.
    """
    from specruntime.drafts.fused import FusedProposer
    from specruntime.drafts.model import ModelProposer
    from specruntime.drafts.ngram import NgramProposer
    from specruntime.drafts.none import NoProposer

    if isinstance(spec, NoneDraft):
        return NoProposer()
    if isinstance(spec, NgramDraft):
        return NgramProposer(k=spec.k, max_n=spec.max_n, min_n=spec.min_n)
    assert isinstance(spec, ModelDraft) and context is not None
    if context.spec.vocab_size != vocab_size:
        raise InvalidArgument(
            f"the draft {spec.graph.file} has {context.spec.vocab_size} tokens, the target {vocab_size}: "
            "draft and target must share one tokenizer"
        )
    return FusedProposer(context, k=spec.k) if spec.fused else ModelProposer(context, k=spec.k)
