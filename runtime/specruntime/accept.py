"""Which drafted tokens stand, and what is emitted. Pure: arrays and callables in, tokens out.

Every rule emits the accepted tokens and one more: a correction, or the bonus after full acceptance. Where nothing can
follow an accepted token, because it ends the answer or the answer's form goes no further, it is the last: it counts as
the one more, and what was drafted behind it is not looked at. Rows are
window rows: row 0 holds the last committed token, row i the i-th drafted one, and row i scores the token after it.
`pending` is what was emitted before the row. The generator is passed in, and the rules keep the dtype of their
inputs. Knows nothing of engines or sampling options.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from specruntime.errors import InvalidArgument

Ids: TypeAlias = Sequence[int] | NDArray[np.int64]
Distribution: TypeAlias = NDArray[np.floating]  # [vocab], sums to 1
# (row, pending) -> the target's token, or its distribution; None where nothing can follow `pending`, which is not empty
SampleRow: TypeAlias = Callable[[int, Sequence[int]], int | None]
DistributionOfRow: TypeAlias = Callable[[int, Sequence[int]], Distribution | None]


class Draws(Protocol):
    """What the rejection rules draw from."""

    def below(self, probability: float, /) -> bool:
        """Return True with this probability (u < probability for u in [0, 1))."""
        ...

    def categorical(self, weights: Distribution, /) -> int:
        """Return an index drawn in proportion to the weights."""
        ...


def accept_greedy(draft_ids: Ids, top_ids: Ids) -> list[int]:
    """Longest prefix of the draft [n] that equals the target's argmax [n + 1 or more]."""
    return accept_match(draft_ids, lambda row, _: int(top_ids[row]))


def accept_match(draft_ids: Ids, sample: SampleRow) -> list[int]:
    """Sample the target row by row and follows the draft [n] while it equals the samples.

    What is emitted never depends on the draft, only how much of it: equal seeds give equal tokens with and without
    speculation.
    """
    emitted: list[int] = []
    for row in range(len(draft_ids) + 1):
        token = sample(row, emitted)
        if token is None:
            return emitted
        emitted.append(token)
        if row < len(draft_ids) and token != draft_ids[row]:
            return emitted
    return emitted


def accept_rejection(draft_ids: Ids, q: Distribution | None, p: DistributionOfRow, draws: Draws) -> list[int]:
    """Speculative sampling (Leviathan 2023, Chen 2023): the output distribution is p, whatever q.

    q [n, vocab]: the distribution each drafted token was drawn from; None: the draft is deterministic (q is 1 at its
    token). Raises `InvalidArgument` for a drafted token that its q cannot have drawn.
    """
    emitted: list[int] = []
    for row, drafted in enumerate(draft_ids):
        target = p(row, emitted)
        if target is None:
            return emitted
        source = _certain(target, int(drafted)) if q is None else q[row]
        if not _accepts(target, source, int(drafted), draws):
            emitted.append(draws.categorical(_residual(target, source)))
            return emitted
        emitted.append(int(drafted))
    target = p(len(draft_ids), emitted)
    if target is not None:
        emitted.append(draws.categorical(target))
    return emitted


def accept_tree_match(
    parents: Sequence[int], node_ids: Ids, sample: SampleRow
) -> tuple[list[int], list[int]]:
    """Sample the target at a node and follows the child that equals the sample; (accepted nodes, emitted tokens).

    parents [W]: the parent row of each window row, before it; -1 for row 0. node_ids [W]: row 0 is not looked at. The
    accepted nodes are strictly ascending and leave out row 0. Of equal siblings the first is followed.
    """
    path: list[int] = []
    emitted: list[int] = []
    row = 0
    while True:
        token = sample(row, emitted)
        if token is None:
            return path[:-1], emitted
        emitted.append(token)
        followed = [child for child in _children(parents, row) if node_ids[child] == emitted[-1]]
        if not followed:
            return path, emitted
        row = followed[0]
        path.append(row)


def accept_tree_rejection(
    parents: Sequence[int], node_ids: Ids, q: Distribution, p: DistributionOfRow, draws: Draws
) -> tuple[list[int], list[int]]:
    """Rejection over siblings drawn without replacement (SpecInfer, Sequoia); (accepted nodes, emitted tokens).

    q [W, vocab]: row i is the distribution the first child of node i was drawn from; each next sibling was drawn from
    it without the earlier ones, renormalised. Siblings are in the order drawn. Otherwise as `accept_tree_match`.
    Raises `InvalidArgument` for a drafted token that its q cannot have drawn.
    """
    path: list[int] = []
    emitted: list[int] = []
    row = 0
    while True:
        target, source = p(row, emitted), q[row]
        if target is None:
            return path[:-1], emitted
        for child in _children(parents, row):
            token = int(node_ids[child])
            if _accepts(target, source, token, draws):
                break
            target, source = _residual(target, source), _without(source, token)
        else:
            emitted.append(draws.categorical(target))
            return path, emitted
        emitted.append(token)
        path.append(child)
        row = child


def _accepts(target: Distribution, source: Distribution, token: int, draws: Draws) -> bool:
    if not source[token] > 0:
        raise InvalidArgument(
            f"drafted token {token} has probability {source[token]} under its declared distribution, expected more"
            " than 0; the draft must report the distribution it drew from"
        )
    return draws.below(float(target[token] / source[token]))


def _residual(target: Distribution, source: Distribution) -> Distribution:
    """Return the distribution of the next token after a rejection; the target's own where nothing is left of it."""
    left = np.maximum(target - source, 0)
    total = left.sum()
    return left / total if total > 0 else target


def _without(source: Distribution, token: int) -> Distribution:
    """Return the distribution of the next sibling: without the token, renormalised."""
    left = source.copy()
    left[token] = 0
    total = left.sum()
    return left / total if total > 0 else left


def _certain(like: Distribution, token: int) -> Distribution:
    certain = np.zeros_like(like)
    certain[token] = 1
    return certain


def _children(parents: Sequence[int], row: int) -> list[int]:
    return [node for node, parent in enumerate(parents) if parent == row]
