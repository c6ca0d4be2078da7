"""How a tree of drafted tokens grows, level by level, from the candidates a draft names for each node. Pure functions.

Owns node numbers: node i sits in window row i + 1, row 0 is the last committed token, and a parent comes before its
children, so the rows of an accepted path ascend. Knows nothing of engines, sampling or token ids.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specruntime.accept import Distribution, Draws
from specruntime.errors import DeadEnd
from specruntime.manifest.draft import depths_of
from specruntime.sampling.noise import gumbel
from specruntime.sampling.sampler import Sampler

Rows = NDArray[np.int64]

_BANNED = -1e30  # the log-belief in a token that cannot follow; sums of it stay finite
_RULED_OUT = _BANNED / 2  # below it are only sums of that

# A candidate of rank r is taken to be right with probability 1 / (2 + 3r). That is roughly what trained drafts reach;
# it only decides which nodes of a static tree stay when a window has no room for all of them.
_FIRST, _NEXT = 2.0, 3.0


@dataclass(frozen=True, slots=True)
class Level:
    """What makes the nodes of one depth: the rows asked for candidates, and which candidates become nodes.

    A row is asked when its node has children. Asked rows are numbered over all levels in the order asked: `slots`.
    """

    asked: Rows  # [m] nodes of the depth above that have children; empty at depth 1, where row 0 is asked
    asked_parents: Rows  # [m] slot of each one's parent; -1 for row 0
    start: int
    stop: int  # the nodes of this depth
    sources: Rows  # [stop - start] index into the rows asked at this level: the node's parent
    parents: Rows  # [stop - start] the same as window rows
    ranks: Rows  # [stop - start]


@dataclass(frozen=True, slots=True)
class StaticTree:
    """A tree of fixed shape in level order."""

    parents: Rows  # [n] window rows
    ranks: Rows  # [n]
    depths: Rows  # [n] 1 for the children of row 0
    levels: tuple[Level, ...]  # level d - 1 makes the nodes of depth d


def tree_paths(tree: StaticTree, level: Level, ids: Rows) -> list[list[int]]:
    """Return the tokens that lead to each row asked at a level; `ids` [n] are those of the levels before it."""
    rows = (level.asked + 1).tolist() if level.start else [0]
    return [path_to(row, tree.parents, ids) for row in rows]


def static_tree(parents: Sequence[int] | Rows, ranks: Sequence[int] | Rows) -> StaticTree:
    """Return the tree with its nodes brought into level order; siblings keep theirs. Parents must be earlier rows."""
    given = np.asarray(parents, np.int64)
    depths = np.array(depths_of(given.tolist()), np.int64)
    order = np.argsort(depths, stable=True)
    return _planned(_renumbered(given, order), np.asarray(ranks, np.int64)[order], depths[order])


def trimmed(tree: StaticTree, depth: int, nodes: int) -> StaticTree:
    """Return what is left of the tree within `depth` levels and `nodes` nodes: those that matter most, with their
    parents.
    """
    if nodes >= len(tree.parents) and depth >= len(tree.levels):
        return tree
    costs = np.zeros(len(tree.parents) + 1)
    for level in tree.levels:
        costs[level.start + 1 : level.stop + 1] = costs[level.parents] + np.log(_FIRST + _NEXT * level.ranks)
    allowed = np.flatnonzero(tree.depths <= depth)
    # A node costs more than its parent, so the cheapest nodes are a tree.
    kept = np.sort(allowed[np.argsort(costs[allowed + 1], stable=True)[:nodes]])
    return _planned(_renumbered(tree.parents, kept), tree.ranks[kept], tree.depths[kept])


class Trimmings:
    """The trimmed shapes of one tree, each made when it is first asked for."""

    def __init__(self, tree: StaticTree) -> None:
        self.tree = tree
        self._known: dict[tuple[int, int], StaticTree] = {}

    def within(self, depth: int, nodes: int) -> StaticTree:
        """As `trimmed`."""
        room = (min(depth, len(self.tree.levels)), min(nodes, len(self.tree.parents)))
        if room not in self._known:
            self._known[room] = trimmed(self.tree, *room)
        return self._known[room]


def without_nodes(parents: Rows, alive: NDArray[np.bool_]) -> tuple[Rows, Rows]:
    """(kept nodes, their parents renumbered) once nodes that are not `alive` [n] and all below them are gone."""
    alive = alive.copy()
    for node, parent in enumerate(parents):
        if parent > 0 and not alive[parent - 1]:
            alive[node] = False
    kept = np.flatnonzero(alive)
    return kept, _renumbered(parents, kept)


class GrowingTree:
    """A tree grown by likelihood (EAGLE-2, https://arxiv.org/abs/2406.16858): every candidate of every asked row.

    Candidates are numbered in the order they came; a candidate's worth is its cumulative log-probability, never above
    its parent's, so the best ones always form a tree.
    """

    def __init__(self, nodes: int, branch: int) -> None:
        self._nodes, self._branch = nodes, branch
        self._parents = np.empty(0, np.int64)  # candidate of the parent, -1 for row 0
        self._ranks = np.empty(0, np.int64)
        self._ids = np.empty(0, np.int64)
        self._worth = np.empty(0)
        self._asked = np.array([-1])  # candidates whose rows answer next

    def grow(self, ids: Rows, logprobs: NDArray[np.floating]) -> Rows:
        """Take the candidates [m, K], best first, of the m rows asked; the candidates [at most branch] to ask next.

        They are the best of the new ones that are among the best `nodes` so far: no other can lead to a node. In
        ascending order; empty when nothing is left to ask.
        """
        asked, count = self._asked, ids.shape[1]
        above = np.where(asked >= 0, np.append(self._worth, 0.0)[asked], 0.0)
        first = len(self._ids)
        self._parents = np.append(self._parents, np.repeat(asked, count))
        self._ranks = np.append(self._ranks, np.tile(np.arange(count), len(asked)))
        self._ids = np.append(self._ids, ids.ravel())
        self._worth = np.append(self._worth, (above[:, None] + np.minimum(logprobs, 0.0)).ravel())
        best = self._best(self._nodes)
        self._asked = np.sort(best[best >= first][: self._branch])
        return self._asked

    def paths_to(self, candidates: Rows) -> list[list[int]]:
        """Return the tokens that lead to each candidate, its own last; none to -1, which is row 0."""
        return [path_to(candidate + 1, self._parents + 1, self._ids) for candidate in candidates.tolist()]

    def ids(self, candidates: Rows) -> Rows:
        return self._ids[candidates]

    def parents(self, candidates: Rows) -> Rows:
        """Return the candidate each one hangs on; -1 for row 0."""
        return self._parents[candidates]

    def chosen(self, nodes: int) -> tuple[Rows, Rows, Rows]:
        """(ids, parents as window rows, ranks) of the best `nodes` candidates, parents before children."""
        kept = np.sort(self._best(nodes))
        return self._ids[kept], _renumbered(self._parents + 1, kept), self._ranks[kept]

    def _best(self, count: int) -> Rows:
        """Return the best candidates that can follow, best first; of equals the one that came first, so a parent before
        its child.
        """
        best = np.argsort(-self._worth, stable=True)[:count]
        ruled_out = np.isfinite(self._worth[best]) & (self._worth[best] < _RULED_OUT)
        return best[~ruled_out]


def path_to(row: int, parents: Rows, ids: Rows) -> list[int]:
    """Return the tokens that lead to a window row, its own last; `parents` and `ids` are those of rows 1, 2, ..."""
    path: list[int] = []
    while row > 0:
        path.append(int(ids[row - 1]))
        row = int(parents[row - 1])
    return path[::-1]


def _planned(parents: Rows, ranks: Rows, depths: Rows) -> StaticTree:
    """Return the tree in level order with its levels."""
    slot_of_row = np.full(len(parents) + 1, -1)  # window row -> slot
    bounds = np.searchsorted(depths, np.arange(1, (depths[-1] if len(depths) else 0) + 2))
    levels: list[Level] = []
    slots = 0
    for start, stop in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        asked_rows = np.unique(parents[start:stop])
        asked = asked_rows - 1 if start else asked_rows[:0]
        level = Level(
            asked=asked,
            asked_parents=slot_of_row[parents[asked]],
            start=start,
            stop=stop,
            sources=np.searchsorted(asked_rows, parents[start:stop]),
            parents=parents[start:stop],
            ranks=ranks[start:stop],
        )
        slot_of_row[asked + 1] = np.arange(slots, slots + len(asked))
        slots += len(asked)
        levels.append(level)
    return StaticTree(parents, ranks, depths, tuple(levels))


def _renumbered(parents: Rows, kept: Rows) -> Rows:
    """Return the window rows of the parents once only the nodes `kept` are left, in that order."""
    new_row = np.zeros(len(parents) + 1, np.int64)
    new_row[kept + 1] = np.arange(1, len(kept) + 1)
    return new_row[parents[kept]]


Ids = NDArray[np.int64]
Logprobs = NDArray[np.floating]


def best_first(
    ids: Ids, logprobs: Logprobs, sampler: Sampler, ahead: int, paths: Iterable[Sequence[int]] = ()
) -> tuple[Ids, Logprobs]:
    """Candidates [..., K] for the output position `ahead` of the next one: (ids, log-beliefs), the most likely first.

    `paths`: what each row of candidates [m, K] follows; in a constrained answer the tokens that may follow it come
    first, and the others with next to no belief.

    A belief is the chance that the target takes the token. At temperature 0 it is the draft's probability. Above, the
    target takes the token whose scaled logit plus noise is highest, and the noise of the position is known: a draft
    near the target believes in the token that leads under the same noise (Gumbel coupling). What is emitted does not
    depend on it.
    """
    temperature = sampler.params.temperature
    if sampler.constraint is not None:
        logprobs = _permitted(ids, logprobs, sampler, paths)
    elif temperature == 0:
        return ids, logprobs
    if temperature == 0:
        order = np.argsort(-logprobs, axis=-1, stable=True)
        return np.take_along_axis(ids, order, -1), np.take_along_axis(logprobs, order, -1)
    noisy = logprobs / temperature + gumbel(sampler.seed, sampler.position + ahead, ids)
    order = np.argsort(-noisy, axis=-1, stable=True)
    order += np.arange(0, ids.size, ids.shape[-1]).reshape(*ids.shape[:-1], 1)
    noisy = noisy.ravel()[order]
    noisy -= noisy[..., :1]
    noisy -= np.log(np.exp(noisy).sum(axis=-1, keepdims=True))
    if sampler.constraint is not None:
        noisy[logprobs.ravel()[order] < _RULED_OUT] = _BANNED
    return ids.ravel()[order], noisy


def _permitted(ids: Ids, logprobs: Logprobs, sampler: Sampler, paths: Iterable[Sequence[int]]) -> Logprobs:
    """Return the log-beliefs [m, K] without those in tokens that cannot follow; rows without a path stay."""
    permitted = np.array(logprobs)
    for row, path in enumerate(paths):
        allowed = sampler.allows(ids[row], path)
        if allowed is not None:
            permitted[row][~allowed] = _BANNED
    return permitted


def probability_of(token: int, ids: Ids, logprobs: Logprobs) -> float:
    """Return the draft's probability of a token by its candidates [K], best first; for any other token, at most the
    last's.
    """
    place = np.flatnonzero(ids == token)
    return float(np.exp(logprobs[place[0] if place.size else -1]))


def room_for_probabilities(count: int, vocab_size: int, sampler: Sampler) -> NDArray[np.float32] | None:
    """[count, vocab] where drafts are drawn from a distribution; None where they follow from logits and seed."""
    return np.empty((count, vocab_size), np.float32) if sampler.params.draws_drafts else None


def next_draft(
    logits: NDArray[np.floating],
    drafted: list[int],
    probabilities: NDArray[np.float32] | None,
    sampler: Sampler,
) -> int | None:
    """Return the token after `drafted` of a chain, from the draft's logits [vocab]; drawn where `probabilities` is
    given, which gets the distribution.

    Otherwise it comes from the target's own noise, so the two agree as often as their logits do. None where nothing
    can follow what was drafted. Raises as `Sampler.sample` where nothing was.
    """
    try:
        if probabilities is None:
            return sampler.sample(logits, drafted)
        probabilities[len(drafted)] = sampler.distribution(logits, drafted)
    except DeadEnd:
        if not drafted:
            raise
        return None
    return sampler.stream(sampler.position + len(drafted), "draft").categorical(probabilities[len(drafted)])


def draw_children(probabilities: Distribution, count: int, draws: Draws) -> list[int]:
    """Up to `count` different tokens, each drawn from a distribution [vocab] without those before it; fewer if none is
    left.
    """
    left, tokens = probabilities.copy(), []
    for _ in range(count):
        if not left.any():
            break
        tokens.append(draws.categorical(left))
        left[tokens[-1]] = 0
    return tokens
