"""Proposals of a constrained answer: what cannot follow is dropped, and what must follow is proposed for free.

Works on the proposals of any draft, so that none has to know constraints. None of it changes what is emitted: it saves
window rows that the target would refuse.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from specruntime.drafts.draft import NOTHING, Draft, Proposal, Room
from specruntime.drafts.trees import path_to, without_nodes
from specruntime.manifest.draft import depths_of
from specruntime.sampling.sampler import Sampler


def propose(
    draft: Draft, tokens: NDArray[np.int64], room: Room, sampler: Sampler, *, behind: int
) -> Proposal:
    """Return what the draft proposes, and in a constrained answer what of it can follow.

    Where what must follow reaches further, that is proposed instead. `behind`: tokens before the last one that
    are not in the target's cache; a draft that cannot draft then is not asked. Raises as `Draft.propose`.
    """
    asked = behind == 0 or draft.drafts_behind
    if sampler.constraint is None:
        return draft.propose(tokens, room, sampler) if asked else NOTHING
    proposal = permitted(draft.propose(tokens, room, sampler), sampler) if asked else NOTHING
    forced = sampler.certain((), min(room.depth, room.nodes))
    return Proposal(np.array(forced, np.int64)) if len(forced) > _depth(proposal) else proposal


def forced_tail(draft: Draft, emitted: Sequence[int], limit: int, sampler: Sampler) -> tuple[int, ...]:
    """Return at most `limit` tokens that must follow what a round emits, where committing them now is worth it.

    A draft that cannot draft behind them is left alone for the next round, which a short tail does not pay for.
    """
    if sampler.constraint is None:
        return ()
    tail = sampler.certain(emitted, limit)
    ends = len(tail) == limit or sampler.ended(tail)
    return tuple(tail) if ends or draft.drafts_behind or len(tail) >= draft.k else ()


def permitted(proposal: Proposal, sampler: Sampler) -> Proposal:
    """Return the proposal without the tokens that cannot follow, and all below them.

    A proposal that was drawn is left as it is: it was drawn from what may follow, and its distributions say so.
    """
    if proposal.probabilities is not None or not len(proposal.ids):
        return proposal
    ids = proposal.ids.tolist()
    if proposal.parents is None:
        count = 0
        while count < len(ids) and _follows(ids[count], ids[:count], sampler):
            count += 1
        return replace(proposal, ids=proposal.ids[:count]) if count < len(ids) else proposal
    alive = np.zeros(len(ids), np.bool_)
    for node, (token, parent) in enumerate(zip(ids, proposal.parents.tolist(), strict=True)):
        above = parent == 0 or alive[parent - 1]
        alive[node] = above and _follows(token, path_to(parent, proposal.parents, proposal.ids), sampler)
    if alive.all():
        return proposal
    kept, parents = without_nodes(proposal.parents, alive)
    ranks = None if proposal.ranks is None else proposal.ranks[kept]
    return Proposal(proposal.ids[kept], None, parents, ranks) if kept.size else NOTHING


def _follows(token: int, path: list[int], sampler: Sampler) -> bool:
    assert sampler.constraint is not None
    return token in sampler.constraint.peek(path)


def _depth(proposal: Proposal) -> int:
    if proposal.parents is None or not len(proposal.ids):
        return len(proposal.ids)
    return max(depths_of(proposal.parents.tolist()))
