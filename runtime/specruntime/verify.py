"""Applies the accept rule of an answer's sampling to a proposal, chain or tree.

Joins the rules of `accept` to the rows of one target window. Runs no engine and changes nothing.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from specruntime.accept import (
    DistributionOfRow,
    SampleRow,
    accept_greedy,
    accept_match,
    accept_rejection,
    accept_tree_match,
    accept_tree_rejection,
)
from specruntime.drafts import Proposal
from specruntime.engines.protocol import Window
from specruntime.errors import DeadEnd
from specruntime.sampling.sampler import Sampler, TokenLogprobs, token_logprobs

Logits = Callable[[], NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """`path`: the accepted window rows, ascending, without row 0. `tokens`: theirs, and one of the target's own.

    `logprobs`: one per token when the answer's params ask for them, under the raw logits of the row it follows.
    `tail`: what must follow the tokens in a constrained answer.
    """

    path: tuple[int, ...]
    tokens: list[int]
    logprobs: tuple[TokenLogprobs, ...] | None = None
    tail: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Round:
    """What one round committed: `accepted` drafted tokens, one of the target's own, and `forced` ones, which had to
    follow in a constrained answer.

    `corrected`: the target's own stands where drafts were refused; else it follows the last of a chain or a leaf of a
    tree.
    """

    tokens: tuple[int, ...]
    proposed: int
    accepted: int
    width: int  # of the target window the tokens were read from
    logprobs: tuple[TokenLogprobs, ...] | None  # one per token when the answer's params ask for them
    corrected: bool
    forced: int = 0


def verify(
    proposal: Proposal,
    top_ids: NDArray[np.int64],
    logits: Logits,
    sampler: Sampler,
) -> Outcome:
    """Judge a proposal of n ids by the target's rows: top_ids [n + 1], logits [n + 1, vocab], asked for if needed.

    Raises as `Sampler.sample` and `Sampler.distribution`.
    """
    if proposal.parents is not None:
        path, tokens = _verify_tree(proposal, proposal.parents.tolist(), top_ids, logits, sampler)
    else:
        tokens = _verify_chain(proposal, top_ids, logits, sampler)
        path = tuple(range(1, len(tokens)))
    top = sampler.params.logprobs
    return Outcome(path, tokens, None if top is None else _logprobs(logits(), path, tokens, top))


def _verify_chain(
    proposal: Proposal,
    top_ids: NDArray[np.int64],
    logits: Logits,
    sampler: Sampler,
) -> list[int]:
    if sampler.greedy_ids_suffice:
        return accept_greedy(proposal.ids, top_ids)
    if proposal.probabilities is None:  # a deterministic draft: `match` is the rejection rule with q = 1
        return accept_match(proposal.ids, _samples(top_ids, logits, sampler))
    draws = sampler.stream(sampler.position, "accept")
    return accept_rejection(proposal.ids, proposal.probabilities, _probabilities(logits, sampler), draws)


def _verify_tree(
    proposal: Proposal,
    parents: list[int],
    top_ids: NDArray[np.int64],
    logits: Logits,
    sampler: Sampler,
) -> tuple[tuple[int, ...], list[int]]:
    above, ids = [-1, *parents], [-1, *proposal.ids.tolist()]
    if sampler.greedy_ids_suffice:
        path, tokens = accept_tree_match(above, ids, lambda row, _: int(top_ids[row]))
        return tuple(path), tokens
    if proposal.probabilities is None:
        path, tokens = accept_tree_match(above, ids, _samples(top_ids, logits, sampler))
        return tuple(path), tokens
    draws = sampler.stream(sampler.position, "accept")
    path, tokens = accept_tree_rejection(
        above, ids, proposal.probabilities, _probabilities(logits, sampler), draws
    )
    return tuple(path), tokens


def _samples(top_ids: NDArray[np.int64], logits: Logits, sampler: Sampler) -> SampleRow:
    """Return the match rule's choice by window row. The logits are only asked for where the argmax does not do."""
    rows = cache(logits)

    def sample(row: int, pending: Sequence[int]) -> int | None:
        try:
            best_id = int(top_ids[row])
            return best_id if sampler.settles(best_id, pending) else sampler.sample(rows()[row], pending)
        except DeadEnd:
            if not pending:
                raise
            return None

    return sample


def _probabilities(logits: Logits, sampler: Sampler) -> DistributionOfRow:
    """Return the target's distribution by window row."""
    rows = logits()

    def probabilities(row: int, pending: Sequence[int]) -> NDArray[np.float32] | None:
        try:
            return sampler.distribution(rows[row], pending)
        except DeadEnd:
            if not pending:
                raise
            return None

    return probabilities


def _logprobs(
    logits: NDArray[np.float32], path: tuple[int, ...], tokens: list[int], top: int
) -> tuple[TokenLogprobs, ...]:
    return tuple(
        token_logprobs(logits[row], token, top, logits.shape[1])
        for row, token in zip((0, *path), tokens, strict=True)
    )


def round_of(proposal: Proposal, outcome: Outcome, width: int) -> Round:
    """Return what a round commits that judged the proposal in a window of this width."""
    return Round(
        tokens=(*outcome.tokens, *outcome.tail),
        proposed=len(proposal.ids),
        accepted=len(outcome.path),
        width=width,
        logprobs=outcome.logprobs,
        corrected=corrects(proposal, outcome.path),
        forced=len(outcome.tail),
    )


def corrects(proposal: Proposal, path: tuple[int, ...]) -> bool:
    """Whether the target's own token stands where drafts were refused; false where the path ends with a leaf."""
    if proposal.parents is None:
        return len(path) < len(proposal.ids)
    return bool((proposal.parents == (path[-1] if path else 0)).any())


def trials(proposal: Proposal, path: tuple[int, ...]) -> Iterator[tuple[int, int | None, bool]]:
    """(depth, rank, accepted) of each node that was judged: a child of row 0 or of an accepted node, in window order.

    Depth 0 are the children of row 0. In a chain that is every node up to the first refused one. Siblings after the
    accepted one count as judged. The rank is None where a tree does not tell it.
    """
    count = len(proposal.ids)
    if proposal.parents is None:
        for depth in range(min(len(path) + 1, count)):
            yield depth, 0, depth < len(path)
        return
    depth_below = {row: depth for depth, row in enumerate((0, *path))}
    ranks = [None] * count if proposal.ranks is None else proposal.ranks.tolist()
    for node, (parent, rank) in enumerate(zip(proposal.parents.tolist(), ranks, strict=True), start=1):
        if parent in depth_below:
            yield depth_below[parent], rank, node in depth_below


def kept_features(window: Window, rows: NDArray[np.int64]) -> NDArray[np.float32] | None:
    """[n, F] features of the window rows [n], ascending from 0; None where the graph has none."""
    if window.features is None:
        return None
    count = len(rows)
    return window.features[0, :count] if rows[-1] == count - 1 else window.features[0, rows]
