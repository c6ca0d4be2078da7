"""How an EAGLE draft's answers become a proposal: a chain, a static tree, or a tree grown by likelihood.

Drafts are the likeliest tokens, given the noise the target will use. Only where the answer asks for the rejection rule
and the bundle's draft gives whole laws are they drawn, for chains and static trees: a dynamic tree keeps and drops
nodes by what was drawn, so its nodes have no law of their own.
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from specruntime.drafts import NOTHING, Proposal, Room
from specruntime.drafts.candidates import (
    best_first,
    draw_children,
    next_draft,
    probability_of,
    room_for_laws,
)
from specruntime.drafts.pairs import Answer, Ladder, PairFeeder
from specruntime.drafts.tree_growth import (
    GrowingTree,
    Level,
    StaticTree,
    Trimmings,
    require_candidates,
    static_tree,
    without_nodes,
)
from specruntime.errors import InvalidArgument
from specruntime.manifest import DynamicTree, TreeSpec
from specruntime.sampling import Sampler

Extend = Callable[[Ladder], Answer]  # feeds what was committed; the answer is about the next token


class Grower(Protocol):
    def grow(self, extend: Extend, pairs: int, room: Room, sampler: Sampler) -> Proposal:
        """A proposal within `room`, whose depth the cache has rows for, behind `pairs` cache rows."""
        ...


class ChainGrower:
    def __init__(self, feeder: PairFeeder, *, stop_below: float) -> None:
        """A drafted token to which the draft gives a probability below `stop_below` is the last of its round."""
        self._feeder = feeder
        self._stop_below = stop_below

    def grow(self, extend: Extend, pairs: int, room: Room, sampler: Sampler) -> Proposal:
        lawful = None if sampler.greedy_ids_suffice else self._feeder.lawful
        ladder = lawful or self._feeder.plain
        count = min(room.depth, room.nodes)
        laws = None if lawful is None else room_for_laws(count, self._feeder.vocab_size, sampler)
        ids: list[int] = []
        answer = extend(ladder)
        while (token := self._next(answer, ids, lawful is not None, laws, sampler)) is not None:
            ids.append(token)
            doubted = probability_of(token, answer.ids[0], answer.logprobs[0]) < self._stop_below
            if doubted or len(ids) == count:
                break
            answer = self._feeder.step(ladder, answer, token, pairs + len(ids) - 1)
        if not ids:
            return NOTHING
        return Proposal(np.array(ids, np.int64), None if laws is None else laws[: len(ids)])

    def _next(
        self,
        answer: Answer,
        ids: list[int],
        whole_law: bool,
        laws: NDArray[np.float32] | None,
        sampler: Sampler,
    ) -> int | None:
        """The next token of the chain; None where the options of the answer ban all that the draft knows."""
        if not whole_law:
            return int(best_first(answer.ids[0], answer.logprobs[0], sampler, len(ids))[0][0])
        logits = self._feeder.logits(answer)[0]
        try:
            return next_draft(logits, ids, laws, sampler)
        except InvalidArgument:  # the target may know further tokens
            return None


class StaticGrower:
    def __init__(self, feeder: PairFeeder, spec: TreeSpec) -> None:
        """Raises `InvalidArgument` for a tree that the feeder's windows cannot grow."""
        self._feeder = feeder
        tree = static_tree(spec.parents, spec.ranks)
        self._trees = Trimmings(tree)
        rows = [len(level.asked) for level in tree.levels]
        _require_levels(feeder, feeder.plain, np.cumsum(rows)[1:].tolist(), rows[1:])
        require_candidates(feeder.context.spec.file, feeder.candidates, tree)
        # Drawing takes the levels with laws; a bundle without them drafts the likeliest tokens.
        lawful = feeder.lawful
        self._drawing = lawful if lawful and len(lawful.levels) >= len(rows) - 1 else None

    def grow(self, extend: Extend, pairs: int, room: Room, sampler: Sampler) -> Proposal:
        tree = self._trees.within(room.depth, room.nodes)
        drawing = self._drawing if sampler.params.draws_drafts else None
        ladder = drawing or self._feeder.plain
        nodes: _Likeliest | _Drawn
        nodes = _Likeliest(tree, sampler) if drawing is None else _Drawn(tree, sampler, self._feeder)
        answer = extend(ladder)
        self._feeder.begin_tree()
        for depth, level in enumerate(tree.levels):
            if depth > 0:
                if not self._feeder.fits_level(ladder, depth, pairs):
                    break
                ids = nodes.ids[level.asked]
                answer = self._feeder.ask(ladder, answer, ids, level.asked_parents, depth, pairs)
            nodes.add(answer, level, depth)
        return nodes.proposal()


class DynamicGrower:
    """EAGLE-2: the best `branch` nodes of each level are expanded, the best `nodes` of all are proposed."""

    def __init__(self, feeder: PairFeeder, spec: DynamicTree, *, depth: int) -> None:
        """Raises `InvalidArgument` for a tree that the feeder's windows cannot grow."""
        self._feeder = feeder
        self._spec = spec
        first = min(spec.branch, feeder.candidates)
        widths = [first + spec.branch * level for level in range(depth - 1)]
        _require_levels(feeder, feeder.plain, widths, [first, *[spec.branch] * (depth - 2)][: depth - 1])

    def grow(self, extend: Extend, pairs: int, room: Room, sampler: Sampler) -> Proposal:
        feeder, ladder = self._feeder, self._feeder.plain
        nodes = min(self._spec.nodes, room.nodes)
        tree = GrowingTree(nodes, self._spec.branch)
        answer = extend(ladder)
        feeder.begin_tree()
        above, slot = np.array([-1]), -1  # the candidates asked last and the slot of the first of them
        for depth in range(1, room.depth + 1):
            asked = tree.grow(*best_first(answer.ids, answer.logprobs, sampler, depth - 1))
            if depth == room.depth or not asked.size or not feeder.fits_level(ladder, depth, pairs):
                break
            parents = np.searchsorted(above, tree.parents(asked)) + slot
            answer = feeder.ask(ladder, answer, tree.ids(asked), parents, depth, pairs)
            slot = slot + len(above)
            above = asked
        ids, parents, ranks = tree.chosen(nodes)
        return Proposal(ids, None, parents, ranks)


class _Likeliest:
    """Nodes of a static tree that are their parents' candidates by rank."""

    def __init__(self, tree: StaticTree, sampler: Sampler) -> None:
        self._tree, self._sampler, self._count = tree, sampler, 0
        self.ids = np.zeros(len(tree.parents), np.int64)

    def add(self, answer: Answer, level: Level, ahead: int) -> None:
        ids, _ = best_first(answer.ids, answer.logprobs, self._sampler, ahead)
        self.ids[level.start : level.stop] = ids[level.sources, level.ranks]
        self._count = level.stop

    def proposal(self) -> Proposal:
        count = self._count
        return Proposal(self.ids[:count], None, self._tree.parents[:count], self._tree.ranks[:count])


class _Drawn:
    """Nodes of a static tree that are drawn, siblings without replacement. Not all may find a token."""

    def __init__(self, tree: StaticTree, sampler: Sampler, feeder: PairFeeder) -> None:
        self._tree, self._sampler, self._feeder = tree, sampler, feeder
        self._alive = np.zeros(len(tree.parents), np.bool_)
        self._laws: dict[int, NDArray[np.float32]] = {}  # by window row
        self._paths: list[list[int]] = [[] for _ in range(len(tree.parents) + 1)]  # tokens by window row
        self._count = 0
        self.ids = np.zeros(len(tree.parents), np.int64)

    def add(self, answer: Answer, level: Level, ahead: int) -> None:
        self._count = level.stop
        logits = self._feeder.logits(answer)
        # One stream for the level: nodes of one depth share the output position, not the numbers.
        draws = self._sampler.stream(self._sampler.position + ahead, "draft")
        for index, row in enumerate(level.asked + 1 if ahead else (0,)):
            children = level.start + np.flatnonzero(level.sources == index)
            if ahead and not self._alive[row - 1]:
                continue
            try:
                law = self._sampler.distribution(logits[index], self._paths[row])
            except InvalidArgument:  # all that the draft knows is banned; the target may know further tokens
                continue
            self._laws[int(row)] = law
            tokens = draw_children(law, len(children), draws)
            for child, token in zip(children.tolist(), tokens, strict=False):
                self.ids[child] = token
                self._alive[child] = True
                self._paths[child + 1] = [*self._paths[row], token]

    def proposal(self) -> Proposal:
        kept, parents = without_nodes(self._tree.parents[: self._count], self._alive[: self._count])
        if not kept.size:
            return NOTHING
        laws = np.zeros((len(kept) + 1, self._feeder.vocab_size), np.float32)
        for new, row in enumerate((0, *(kept + 1).tolist())):
            if row in self._laws:
                laws[new] = self._laws[row]
        return Proposal(self.ids[kept], laws, parents)


def _require_levels(feeder: PairFeeder, ladder: Ladder, widths: list[int], rows: list[int]) -> None:
    for depth, (width, judged) in enumerate(zip(widths, rows, strict=True), start=1):
        found = ladder.levels[depth - 1].profile if depth <= len(ladder.levels) else None
        if found is None or found.width < width or found.rows < judged:
            has = "none" if found is None else f"one {found.width} wide with {found.rows} rows"
            raise InvalidArgument(
                f"{feeder.context.spec.file}: level {depth} of the draft's tree needs a window {width} wide with "
                f"{judged} rows, found {has}: build the bundle again"
            )
