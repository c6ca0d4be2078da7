"""Which tokens of a proposal stand, chain or tree, under the rule that an answer's sampling asks for.

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
from specruntime.drafts import Draft, Proposal, Verdict
from specruntime.engines.protocol import Window
from specruntime.sampling.sampler import Sampler


@dataclass(frozen=True, slots=True)
class Outcome:
    """`path`: the accepted window rows, ascending, without row 0. `tokens`: theirs, and one of the target's own."""

    path: tuple[int, ...]
    tokens: list[int]


def judge(
    proposal: Proposal,
    top_ids: NDArray[np.int64],
    logits: Callable[[], NDArray[np.float32]],
    sampler: Sampler,
) -> Outcome:
    """Judges a proposal of n ids by the target's rows: top_ids [n + 1], logits [n + 1, vocab], asked for if needed.

    Raises as `Sampler.sample` and `Sampler.distribution`.
    """
    if proposal.parents is not None:
        return _judge_tree(proposal, proposal.parents.tolist(), top_ids, logits, sampler)
    tokens = _judge_chain(proposal, top_ids, logits, sampler)
    return Outcome(tuple(range(1, len(tokens))), tokens)


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
) -> Outcome:
    above, ids = [-1, *parents], [-1, *proposal.ids.tolist()]
    if sampler.greedy_ids_suffice:
        path, tokens = accept_tree_match(above, ids, lambda row, _: int(top_ids[row]))
        return Outcome(tuple(path), tokens)
    rows = logits()
    if proposal.probabilities is None:
        path, tokens = accept_tree_match(above, ids, lambda row, pending: sampler.sample(rows[row], pending))
        return Outcome(tuple(path), tokens)
    path, tokens = accept_tree_rejection(
        above,
        ids,
        proposal.probabilities,
        lambda row, pending: sampler.distribution(rows[row], pending),
        sampler.stream(sampler.position, "accept"),
    )
    return Outcome(tuple(path), tokens)


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


class PromptTelling:
    """Tells a draft of each window of a prompt as it is fed. `seconds`: what the draft took to listen."""

    def __init__(self, draft: Draft, clock: Callable[[], float]) -> None:
        self.seconds = 0.0
        self._draft = draft
        self._clock = clock
        self._last = clock()

    def __call__(self, window: Window, start: int, count: int) -> None:
        """The window held `count` ids at cache offset `start`."""
        ran = self._clock()
        self._draft.observe(
            Verdict(
                start=start,
                features=kept_features(window, np.arange(count)),
                kept=count,
                proposal=None,
                path=(),
                width=window.profile.width,
                draft_seconds=0.0,
                verify_seconds=ran - self._last,
            )
        )
        self._last = self._clock()
        self.seconds += self._last - ran
