"""EAGLE, EAGLE-2 and EAGLE-3 drafts: one decoder layer that continues the target's own features.

Owns the features of the committed positions and how many pairs of them are in the draft's cache. Each round extends
that cache by what was committed, with the target's features; what the draft wrote while looking ahead counts for
nothing. https://arxiv.org/abs/2401.15077, https://arxiv.org/abs/2406.16858, https://arxiv.org/abs/2503.01840.
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from specruntime.drafts.draft import NOTHING, Draft, Proposal, Room, Verdict
from specruntime.drafts.eagle_windows import Answer, Ladder, PairFeeder
from specruntime.drafts.own_cache import CachingDraft
from specruntime.drafts.trees import (
    GrowingTree,
    Level,
    StaticTree,
    Trimmings,
    best_first,
    draw_children,
    next_draft,
    probability_of,
    require_candidates,
    room_for_laws,
    static_tree,
    without_nodes,
)
from specruntime.engines.protocol import Context
from specruntime.errors import InvalidArgument
from specruntime.manifest.schema import DynamicTree, EagleDraft, TreeSpec
from specruntime.sampling.sampler import Sampler

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


class EagleProposer(CachingDraft[PairFeeder]):
    """Proposes a chain, a static tree or a dynamic tree, as the manifest says. A row of its cache is a pair."""

    def __init__(self, context: Context, spec: EagleDraft, *, vocab_size: int) -> None:
        """Raises `InvalidArgument` for a graph whose windows cannot grow the tree or name too few candidates."""
        super().__init__(PairFeeder(context, vocab_size), k=spec.k)
        self._grower = _grower(self._feeder, spec)
        self._features = np.zeros((self._feeder.capacity, self._feeder.hidden_size), np.float32)
        self._observed = 0  # positions whose features are known

    def propose(self, tokens: NDArray[np.int64], room: Room, sampler: Sampler) -> Proposal:
        # n tokens make n - 1 pairs; drafting `depth` tokens writes depth - 1 cache rows behind them.
        pairs = len(tokens) - 1
        depth = min(room.depth, self.k, self._feeder.capacity - pairs + 1)
        if pairs < 1 or depth < 1 or room.nodes < 1:
            return NOTHING
        assert self._observed >= pairs, "the session shows a draft every target window"
        with self._engine_calls():
            proposal = self._grower.grow(
                lambda ladder: self._extend(ladder, tokens), pairs, Room(depth, room.nodes), sampler
            )
        self.cache_length = pairs
        return proposal

    def observe(self, verdict: Verdict) -> None:
        assert verdict.features is not None and verdict.start <= self._observed
        # Beyond its own capacity the draft is silent and needs no features.
        stop = min(verdict.start + verdict.kept, len(self._features))
        if stop > verdict.start:
            self._features[verdict.start : stop] = verdict.features[: stop - verdict.start]
        self._observed = verdict.start + verdict.kept

    def start_from(self, source: Draft, length: int) -> None:
        assert isinstance(source, EagleProposer), "the drafts of a bundle are of one kind"
        super().start_from(source, max(length - 1, 0))
        self._observed = min(source._observed, length)
        self._features[: self._observed] = source._features[: self._observed]

    def rewind(self, length: int) -> None:
        # Features say what led to a position; pair t holds token t + 1 as well.
        self._observed = min(self._observed, length)
        super().rewind(max(length - 1, 0))

    def _extend(self, ladder: Ladder, tokens: NDArray[np.int64]) -> Answer:
        """Feeds the pairs that are not in the cache, the last one always; the answer is about the next token."""
        start = min(self.cache_length, len(tokens) - 2)
        return self._feeder.extend(ladder, self._features, tokens, start)


def _grower(feeder: PairFeeder, spec: EagleDraft) -> Grower:
    if spec.dynamic is not None:
        return DynamicGrower(feeder, spec.dynamic, depth=spec.k)
    if spec.tree is not None:
        return StaticGrower(feeder, spec.tree)
    return ChainGrower(feeder, stop_below=spec.stop_below or 0.0)
