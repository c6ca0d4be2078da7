"""Medusa heads: one launch on the target's last hidden state names candidates for every depth of a static tree.

Head i at position t predicts token t + i + 2. The target's own token t + 1 is the last committed one, so the tree
starts at head 0 and no pass is spent on a bonus token. https://arxiv.org/abs/2401.10774.
"""

import numpy as np
from numpy.typing import NDArray

from specruntime.drafts.draft import NOTHING, Draft, Proposal, Room, Verdict
from specruntime.drafts.trees import Trimmings, best_first, require_candidates, static_tree
from specruntime.engines.protocol import Context, Window
from specruntime.engines.windows import run_counted
from specruntime.errors import InvalidArgument
from specruntime.manifest.schema import MedusaDraft
from specruntime.sampling.sampler import Sampler

HEADS = "heads"


class MedusaProposer(Draft):
    """Proposes each head's likeliest candidates, given the noise the target will use. Its graph has no cache."""

    def __init__(self, context: Context, spec: MedusaDraft) -> None:
        """Raises `InvalidArgument` for a graph whose heads or candidates are too few for the tree."""
        super().__init__(spec.k)
        self._context = context
        self._window = _heads_window(context)
        tree = static_tree(spec.tree.parents, spec.tree.ranks)
        self._trees = Trimmings(tree)
        _, _, heads, candidates = self._ids.shape
        require_candidates(context.spec.file, candidates, tree)
        if heads < self.k:
            raise InvalidArgument(
                f"{context.spec.file} has {heads} heads, the draft's tree is {self.k} deep: build the bundle again"
            )
        self._seen = (
            0  # positions the target has seen; the window holds the features of the last one while `_known`
        )
        self._known = False

    def propose(self, tokens: NDArray[np.int64], room: Room, sampler: Sampler) -> Proposal:
        # Right after a rewind the hidden state of the last position that still counts is gone.
        if not self._known or self._seen != len(tokens) - 1 or min(room.depth, room.nodes) < 1:
            return NOTHING
        tree = self._trees.within(room.depth, room.nodes)
        run_counted(self._context, self._window, self.tally)
        assert self._window.topk_logprobs is not None
        levels = zip(self._ids[0, 0], self._window.topk_logprobs[0, 0], tree.levels, strict=False)
        ids = [
            best_first(ids, logprobs, sampler, ahead)[0][level.ranks]
            for ahead, (ids, logprobs, level) in enumerate(levels)
        ]
        return Proposal(np.concatenate(ids), None, tree.parents, tree.ranks)

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


def _heads_window(context: Context) -> Window:
    names = [profile.name for profile in context.spec.profiles]
    window = context.window(HEADS) if HEADS in names else None
    tensors = ("hidden", "topk_ids", "topk_logprobs")
    missing = [name for name in tensors if window is not None and getattr(window, name) is None]
    if window is None or window.profile.width != 1 or missing:
        raise InvalidArgument(
            f"{context.spec.file} has the profiles {', '.join(names)}{' without ' if missing else ''}"
            f"{', '.join(missing)}, expected {HEADS!r} of width 1 with {', '.join(tensors)}: build the bundle again"
        )
    return window
