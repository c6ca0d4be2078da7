"""Applies the accept rule of an answer's sampling to a proposal, chain or tree.

Joins the rules of `accept` to the rows of one target window. Runs no engine and changes nothing.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specruntime.accept import (
    accept_greedy,
    accept_match,
    accept_rejection,
    accept_tree_match,
    accept_tree_rejection,
)
from specruntime.drafts import Proposal
from specruntime.engines.protocol import Window
from specruntime.sampling.sampler import Sampler, TokenLogprobs, token_logprobs


@dataclass(frozen=True, slots=True)
class Outcome:
    """`path`: the accepted window rows, ascending, without row 0. `tokens`: theirs, and one of the target's own.

    `logprobs`: one per token when the answer's params ask for them, under the raw logits of the row it follows.
    """

    path: tuple[int, ...]
    tokens: list[int]
    logprobs: tuple[TokenLogprobs, ...] | None = None


def judge(
    proposal: Proposal,
    top_ids: NDArray[np.int64],
    logits: Callable[[], NDArray[np.float32]],
    sampler: Sampler,
) -> Outcome:
    """Judge a proposal of n ids by the target's rows: top_ids [n + 1], logits [n + 1, vocab], asked for if needed.

    Raises as `Sampler.sample` and `Sampler.distribution`.
    """
    if proposal.parents is not None:
        path, tokens = _judge_tree(proposal, proposal.parents.tolist(), top_ids, logits, sampler)
    else:
        tokens = _judge_chain(proposal, top_ids, logits, sampler)
        path = tuple(range(1, len(tokens)))
    top = sampler.params.logprobs
    return Outcome(path, tokens, None if top is None else _logprobs(logits(), path, tokens, top))


def _judge_chain(
    proposal: Proposal,
    top_ids: NDArray[np.int64],
    logits: Callable[[], NDArray[np.float32]],
    sampler: Sampler,
) -> list[int]:
    if sampler.greedy_ids_suffice:
        return accept_greedy(proposal.ids, top_ids)
    rows = logits()
    if proposal.probabilities is None:  # a deterministic draft: `match` is the rejection rule with q = 1
        return accept_match(proposal.ids, lambda row, pending: sampler.sample(rows[row], pending))
    return accept_rejection(
        proposal.ids,
        proposal.probabilities,
        lambda row, pending: sampler.distribution(rows[row], pending),
        sampler.stream(sampler.position, "accept"),
    )


def _judge_tree(
    proposal: Proposal,
    parents: list[int],
    top_ids: NDArray[np.int64],
    logits: Callable[[], NDArray[np.float32]],
    sampler: Sampler,
) -> tuple[tuple[int, ...], list[int]]:
    above, ids = [-1, *parents], [-1, *proposal.ids.tolist()]
    if sampler.greedy_ids_suffice:
        path, tokens = accept_tree_match(above, ids, lambda row, _: int(top_ids[row]))
        return tuple(path), tokens
    rows = logits()
    if proposal.probabilities is None:
        path, tokens = accept_tree_match(above, ids, lambda row, pending: sampler.sample(rows[row], pending))
        return tuple(path), tokens
    path, tokens = accept_tree_rejection(
        above,
        ids,
        proposal.probabilities,
        lambda row, pending: sampler.distribution(rows[row], pending),
        sampler.stream(sampler.position, "accept"),
    )
    return tuple(path), tokens


def _logprobs(
    logits: NDArray[np.float32], path: tuple[int, ...], tokens: list[int], top: int
) -> tuple[TokenLogprobs, ...]:
    return tuple(
        token_logprobs(logits[row], token, top, logits.shape[1])
        for row, token in zip((0, *path), tokens, strict=True)
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
