"""Kind `medusa`: one launch on the target's last hidden state names candidates for every depth of a static tree.

Head i at position t predicts token t + i + 2. The target's own token t + 1 is the last committed one, so the tree
starts at head 0 and no pass is spent on a bonus token. https://arxiv.org/abs/2401.10774.
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from specruntime.drafts.draft import NOTHING, Draft, Proposal, Room, Verdict
from specruntime.drafts.kind import DraftSpec
from specruntime.drafts.trees import Trimmings, best_first, static_tree, tree_paths
from specruntime.engines.protocol import Context
from specruntime.engines.windows import run_counted
from specruntime.manifest.contracts import ANY, HIDDEN, Contract
from specruntime.manifest.draft import (
    TreeSpec,
    check_computed,
    check_features,
    check_one_row,
    check_tree,
    topk_sizes,
)
from specruntime.manifest.graph import GraphSpec
from specruntime.manifest.numbers import Size
from specruntime.manifest.refusals import refuse
from specruntime.sampling.sampler import Sampler

HEADS = "heads"  # the one profile of its graph
_CONTRACT = Contract(
    inputs=HIDDEN,
    needed_inputs=("hidden",),
    outputs={
        "topk_ids": ("int64", ("B", "R", ANY, ANY)),
        "topk_logprobs": ("float32", ("B", "R", ANY, ANY)),
    },
    needed_outputs=("topk_ids", "topk_logprobs"),
    cached=False,
)


class MedusaDraft(DraftSpec):
    """Heads on the target's last hidden state; head i drafts the tokens of depth i + 1 of a static tree."""

    contract: ClassVar = _CONTRACT
    c_numbers: ClassVar = {"medusa": (4, "heads on the target's last hidden state")}

    kind: Literal["medusa"] = "medusa"
    heads: Size
    tree: TreeSpec
    graph: GraphSpec

    @property
    def k(self) -> int:
        return self.tree.depth

    @property
    def nodes(self) -> int:
        return len(self.tree.parents)

    @property
    def grows_trees(self) -> bool:
        return True

    @property
    def width_key(self) -> str:
        return "the number of nodes of draft.tree"

    def check(self, target: GraphSpec) -> None:
        check_one_row(self.graph, HEADS)
        check_computed(self.graph, _CONTRACT.needed_outputs)
        heads, candidates = topk_sizes(self.graph)
        if self.heads != heads:
            refuse(f"draft.heads is {self.heads}, but topk_ids of its graph has {heads}")
        check_tree(target, self.tree, candidates)
        if self.tree.depth > self.heads:
            refuse(
                f"draft.tree is {self.tree.depth} deep, but there are {self.heads} heads, one for each depth"
            )
        check_features(target, self.graph)

    def proposer(self, own: Context | None, target: Context | None, vocab_size: int) -> Draft:
        assert own is not None, "this kind has a graph"
        return MedusaProposer(own, self)

    def first_seconds(self, size: int, step: float, times: Mapping[str, float]) -> float:
        return step


class MedusaProposer(Draft):
    """Proposes each head's most likely candidates, given the noise the target will use. Its graph has no cache."""

    def __init__(self, context: Context, spec: MedusaDraft) -> None:
        super().__init__(spec.k)
        self._context = context
        self._window = context.window(HEADS)
        self._trees = Trimmings(static_tree(spec.tree.parents, spec.tree.ranks))
        self._seen = (
            0  # positions the target has seen; the window holds the features of the last one while `_known`
        )
        self._known = False

    def propose(self, tokens: NDArray[np.int64], room: Room, sampler: Sampler) -> Proposal:
        # Right after a rewind the hidden state of the last position that still counts is gone.
        if not self._known or self._seen != len(tokens) - 1 or min(room.depth, room.nodes) < 1:
            return NOTHING
        tree = self._trees.within(room.depth, room.nodes)
        run_counted(self._context, self._window, self.counters)
        assert self._window.topk_logprobs is not None
        ids = np.zeros(len(tree.parents), np.int64)
        heads = zip(self._ids[0, 0], self._window.topk_logprobs[0, 0], strict=True)
        for ahead, (level, (candidates, logprobs)) in enumerate(zip(tree.levels, heads, strict=False)):
            if sampler.constraint is None:  # the same ones whatever they follow
                ordered, _ = best_first(candidates, logprobs, sampler, ahead)
                ids[level.start : level.stop] = ordered[level.ranks]
                continue
            paths = tree_paths(tree, level, ids)
            shape = len(paths), len(candidates)
            rows = np.broadcast_to(candidates, shape), np.broadcast_to(logprobs, shape)
            ordered, _ = best_first(*rows, sampler, ahead, paths)
            ids[level.start : level.stop] = ordered[level.sources, level.ranks]
        return Proposal(ids, None, tree.parents, tree.ranks)

    # `start_from` takes nothing over: of all positions only the last one's features count, which the next window shows.

    def observe(self, verdict: Verdict) -> None:
        assert verdict.features is not None and self._window.hidden is not None
        self._window.hidden[0, 0] = verdict.features[verdict.kept - 1]
        self._seen = verdict.start + verdict.kept
        self._known = True

    def rewind(self, length: int) -> None:
        if length < self._seen:
            self._seen, self._known = length, False

    def reset(self) -> None:
        self.rewind(0)

    def close(self) -> None:
        self._context.close()

    @property
    def _ids(self) -> NDArray[np.int64]:
        """[1, 1, heads, K] target ids, best first."""
        assert self._window.topk_ids is not None
        return self._window.topk_ids
