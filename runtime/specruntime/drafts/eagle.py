"""Kinds `eagle` and `eagle3` (EAGLE, EAGLE-2 and EAGLE-3): one decoder layer that continues the target's own features.

Owns the features of the committed positions and how many pairs of them are in the draft's cache. Each round extends
that cache by what was committed, with the target's features; what the draft wrote while looking ahead counts for
nothing. https://arxiv.org/abs/2401.15077, https://arxiv.org/abs/2406.16858, https://arxiv.org/abs/2503.01840.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from specruntime.drafts.draft import NOTHING, Draft, Proposal, Room, Verdict
from specruntime.drafts.eagle_windows import Expansion, Ladder, PairFeeder
from specruntime.drafts.kind import DraftSpec
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
    room_for_probabilities,
    static_tree,
    tree_paths,
    without_nodes,
)
from specruntime.engines.protocol import Context
from specruntime.errors import DeadEnd
from specruntime.manifest.contracts import ANY, HIDDEN, LOGITS, WINDOW, Contract
from specruntime.manifest.draft import (
    TreeSpec,
    check_computed,
    check_features,
    check_masked,
    check_one_row,
    check_tree,
    last_size,
    topk_sizes,
)
from specruntime.manifest.graph import LEVEL, STEP, GraphSpec
from specruntime.manifest.numbers import MAX_LAYERS, MAX_NODES, Closed, Index, Share, Size
from specruntime.manifest.refusals import refuse
from specruntime.sampling.sampler import Sampler

_CONTRACT = Contract(
    inputs=WINDOW | HIDDEN,
    needed_inputs=("input_ids", "cache_length", "hidden"),
    outputs={
        "topk_ids": ("int64", ("B", "R", ANY)),
        "topk_logprobs": ("float32", ("B", "R", ANY)),
        "next_hidden": ("float32", ("B", "W", ANY)),
        "logits": LOGITS,
    },
    needed_outputs=("topk_ids", "topk_logprobs", "next_hidden"),
)


class DynamicTree(Closed):
    """A tree grown every round (EAGLE-2): `branch` nodes expanded per level, the best `nodes` of all judged."""

    nodes: Annotated[int, Field(ge=1, le=MAX_NODES)]
    branch: Size


class TappedLayers(Closed):
    """The hidden states of the target that feed an EAGLE-3 draft: what enters these layers, and how that is known."""

    entering: Annotated[tuple[Index, ...], Field(min_length=1, max_length=MAX_LAYERS)]
    """The number of layers stands for what leaves the last."""
    reason: Annotated[str, Field(max_length=400)]


class EagleDraft(DraftSpec):
    """One decoder layer on target features, `k` steps deep: a chain, a static `tree`, or a `dynamic` one.

    A chain is drafted no further once the draft's own probability of a token falls below `stop_below`.
    """

    contract: ClassVar = _CONTRACT
    c_numbers: ClassVar = {
        "eagle": (5, "one layer on the target's top features"),
        "eagle3": (6, "one layer on features of three target layers"),
    }

    kind: Literal["eagle", "eagle3"]
    k: Size
    tree: TreeSpec | None = None
    dynamic: DynamicTree | None = None
    stop_below: Share | None = None
    tapped: TappedLayers | None = None
    graph: GraphSpec

    @property
    def nodes(self) -> int:
        if self.dynamic is not None:
            return self.dynamic.nodes
        return self.k if self.tree is None else len(self.tree.parents)

    @property
    def grows_trees(self) -> bool:
        return self.tree is not None or self.dynamic is not None

    @property
    def width_key(self) -> str:
        if self.dynamic is not None:
            return "draft.dynamic.nodes"
        return "draft.k" if self.tree is None else "the number of nodes of draft.tree"

    def check(self, target: GraphSpec) -> None:
        (candidates,) = topk_sizes(self.graph)
        if self.tree is not None and self.dynamic is not None:
            refuse("draft has both a tree and a dynamic tree, expected one of them or neither")
        if self.stop_below is not None and self.grows_trees:
            refuse(f"draft.stop_below is {self.stop_below} with a tree, expected it for chains only")
        if self.tree is not None:
            check_tree(target, self.tree, candidates)
            if self.tree.depth != self.k:
                refuse(f"draft.k is {self.k}, but draft.tree is {self.tree.depth} deep")
        if self.dynamic is not None:
            self._check_dynamic(target, self.dynamic, candidates)
        check_one_row(self.graph, STEP)
        check_computed(self.graph, _CONTRACT.needed_outputs)
        self._check_levels()
        check_features(target, self.graph)
        taken, given = last_size(self.graph, "hidden"), last_size(self.graph, "next_hidden")
        if taken != given:
            refuse(f"draft.graph takes hidden of {taken} and gives next_hidden of {given}, expected one size")

    def _check_dynamic(self, target: GraphSpec, dynamic: DynamicTree, candidates: int) -> None:
        check_masked(target)
        if dynamic.branch > candidates:
            refuse(f"draft.dynamic.branch is {dynamic.branch}, but its graph names {candidates} candidates")
        if dynamic.nodes < self.k:
            refuse(f"draft.dynamic.nodes is {dynamic.nodes}, too few for a depth of {self.k}")

    def _check_levels(self) -> None:
        """Each level of the tree but the last has a window that all nodes asked so far fit into."""
        profiles = {profile.name: profile for profile in self.graph.profiles}
        masked = any(tensor.name == "window_mask" for tensor in self.graph.inputs)
        width = 0
        for depth, rows in enumerate(self._asked(), start=1):
            width += rows
            found = profiles.get(f"{LEVEL}{depth}")
            if found is None or found.width < width or found.rows < rows:
                has = "none" if found is None else f"one {found.width} wide with {found.rows} rows"
                refuse(
                    f"draft.graph: level {depth} of the draft's tree needs a profile {LEVEL + str(depth)!r} {width} "
                    f"wide with {rows} rows, found {has}"
                )
            if not masked:
                refuse("draft.graph has no input 'window_mask', which a tree of more than one level needs")

    def _asked(self) -> list[int]:
        """How many nodes of each depth from 1 on are asked for children."""
        if self.dynamic is not None:
            return [self.dynamic.branch] * (self.k - 1)
        if self.tree is None:
            return []
        return [len(level.asked) for level in static_tree(self.tree.parents, self.tree.ranks).levels[1:]]

    def proposer(self, own: Context | None, target: Context | None, vocab_size: int) -> Draft:
        assert own is not None, "these kinds have a graph"
        return EagleProposer(own, self, vocab_size=vocab_size)

    def first_seconds(self, size: int, step: float, times: Mapping[str, float]) -> float:
        if not self.grows_trees:
            return size * step
        return step + sum(times.get(f"{LEVEL}{depth}", step) for depth in range(1, self.k))


Extend = Callable[[Ladder], Expansion]  # feeds what was committed; the answer is about the next token


class Grower(Protocol):
    def grow(self, extend: Extend, pairs: int, room: Room, sampler: Sampler) -> Proposal:
        """Return a proposal within `room`, whose depth the cache has rows for, behind `pairs` cache rows."""
        ...


class ChainGrower:
    def __init__(self, feeder: PairFeeder, *, stop_below: float) -> None:
        """Cut the chain: a drafted token to which the draft gives a probability below `stop_below` is the last of its
        round.
        """
        self._feeder = feeder
        self._stop_below = stop_below

    def grow(self, extend: Extend, pairs: int, room: Room, sampler: Sampler) -> Proposal:
        with_logits = None if sampler.greedy_ids_suffice else self._feeder.with_logits
        ladder = with_logits or self._feeder.plain
        count = min(room.depth, room.nodes)
        probabilities = (
            None if with_logits is None else room_for_probabilities(count, self._feeder.vocab_size, sampler)
        )
        ids: list[int] = []
        answer = extend(ladder)
        while (token := self._next(answer, ids, with_logits is not None, probabilities, sampler)) is not None:
            ids.append(token)
            doubted = probability_of(token, answer.ids[0], answer.logprobs[0]) < self._stop_below
            if doubted or len(ids) == count or sampler.ended(ids):
                break
            answer = self._feeder.step(ladder, answer, token, pairs + len(ids) - 1)
        if not ids:
            return NOTHING
        return Proposal(np.array(ids, np.int64), None if probabilities is None else probabilities[: len(ids)])

    def _next(
        self,
        answer: Expansion,
        ids: list[int],
        with_logits: bool,
        probabilities: NDArray[np.float32] | None,
        sampler: Sampler,
    ) -> int | None:
        """Return the next token of the chain; None where the options of the answer ban all that the draft knows."""
        if not with_logits:
            return int(best_first(answer.ids, answer.logprobs, sampler, len(ids), (ids,))[0][0, 0])
        logits = self._feeder.logits(answer)[0]
        try:
            return next_draft(logits, ids, probabilities, sampler)
        except DeadEnd:  # the target may know further tokens
            return None


class StaticGrower:
    def __init__(self, feeder: PairFeeder, spec: TreeSpec) -> None:
        self._feeder = feeder
        tree = static_tree(spec.parents, spec.ranks)
        self._trees = Trimmings(tree)
        # Drawing takes the levels with distributions; a bundle without them drafts the most likely tokens.
        with_logits = feeder.with_logits
        self._drawing = (
            with_logits if with_logits and len(with_logits.levels) >= len(tree.levels) - 1 else None
        )

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

    def __init__(self, feeder: PairFeeder, spec: DynamicTree) -> None:
        self._feeder = feeder
        self._spec = spec

    def grow(self, extend: Extend, pairs: int, room: Room, sampler: Sampler) -> Proposal:
        feeder, ladder = self._feeder, self._feeder.plain
        nodes = min(self._spec.nodes, room.nodes)
        tree = GrowingTree(nodes, self._spec.branch)
        answer = extend(ladder)
        feeder.begin_tree()
        above, slot = np.array([-1]), -1  # the candidates asked last and the slot of the first of them
        for depth in range(1, room.depth + 1):
            paths = [] if sampler.constraint is None else tree.paths_to(above)
            asked = tree.grow(*best_first(answer.ids, answer.logprobs, sampler, depth - 1, paths))
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

    def add(self, answer: Expansion, level: Level, ahead: int) -> None:
        paths = () if self._sampler.constraint is None else tree_paths(self._tree, level, self.ids)
        ids, _ = best_first(answer.ids, answer.logprobs, self._sampler, ahead, paths)
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
        self._probabilities: dict[int, NDArray[np.float32]] = {}  # by window row
        self._paths: list[list[int]] = [[] for _ in range(len(tree.parents) + 1)]  # tokens by window row
        self._count = 0
        self.ids = np.zeros(len(tree.parents), np.int64)

    def add(self, answer: Expansion, level: Level, ahead: int) -> None:
        self._count = level.stop
        logits = self._feeder.logits(answer)
        # One stream for the level: nodes of one depth share the output position, not the numbers.
        draws = self._sampler.stream(self._sampler.position + ahead, "draft")
        for index, row in enumerate(level.asked + 1 if ahead else (0,)):
            children = level.start + np.flatnonzero(level.sources == index)
            if ahead and not self._alive[row - 1]:
                continue
            try:
                probabilities = self._sampler.distribution(logits[index], self._paths[row])
            except DeadEnd:  # all that the draft knows is banned; the target may know further tokens
                continue
            self._probabilities[int(row)] = probabilities
            tokens = draw_children(probabilities, len(children), draws)
            for child, token in zip(children.tolist(), tokens, strict=False):
                self.ids[child] = token
                self._alive[child] = True
                self._paths[child + 1] = [*self._paths[row], token]

    def proposal(self) -> Proposal:
        kept, parents = without_nodes(self._tree.parents[: self._count], self._alive[: self._count])
        if not kept.size:
            return NOTHING
        probabilities = np.zeros((len(kept) + 1, self._feeder.vocab_size), np.float32)
        for new, row in enumerate((0, *(kept + 1).tolist())):
            if row in self._probabilities:
                probabilities[new] = self._probabilities[row]
        return Proposal(self.ids[kept], probabilities, parents)


class EagleProposer(CachingDraft[PairFeeder]):
    """Proposes a chain, a static tree or a dynamic tree, as the manifest says. A row of its cache is a pair."""

    def __init__(self, context: Context, spec: EagleDraft, *, vocab_size: int) -> None:
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

    def _extend(self, ladder: Ladder, tokens: NDArray[np.int64]) -> Expansion:
        """Feed the pairs that are not in the cache, the last one always; the answer is about the next token."""
        start = min(self.cache_length, len(tokens) - 2)
        return self._feeder.extend(ladder, self._features, tokens, start)


def _grower(feeder: PairFeeder, spec: EagleDraft) -> Grower:
    if spec.dynamic is not None:
        return DynamicGrower(feeder, spec.dynamic)
    if spec.tree is not None:
        return StaticGrower(feeder, spec.tree)
    return ChainGrower(feeder, stop_below=spec.stop_below or 0.0)
