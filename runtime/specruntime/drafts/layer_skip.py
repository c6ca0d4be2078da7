"""The target drafts for itself with some of its layers (LayerSkip, https://arxiv.org/abs/2404.16710).

It runs the profile `draft` of the session's own context. The layers it keeps have the committed rows in the target's
cache already, so there is nothing to catch up with; step d writes row `cache length + d` of them, which the
verification of the same round writes again. Holds no state of its own.
"""

import numpy as np
from numpy.typing import NDArray

from specruntime.drafts.draft import NOTHING, Draft, Proposal, Room
from specruntime.drafts.trees import next_draft, room_for_laws
from specruntime.engines.protocol import Context
from specruntime.engines.windows import run_counted, stage, stage_chain
from specruntime.errors import InvalidArgument
from specruntime.manifest.schema import LayerSkipDraft
from specruntime.sampling.sampler import Sampler

DRAFT = "draft"


class LayerSkipProposer(Draft):
    """Proposes what the target's kept layers continue with, for the session that owns `target` and verifies next."""

    def __init__(self, target: Context, spec: LayerSkipDraft) -> None:
        """Never closes `target`. Raises `InvalidArgument` for a target graph without a profile `draft` of width 1."""
        super().__init__(spec.k)
        profiles = {profile.name: profile for profile in target.spec.profiles}
        found = profiles.get(DRAFT)
        if found is None or (found.width, found.rows) != (1, 1):
            raise InvalidArgument(
                f"{target.spec.file} has the profiles {', '.join(profiles)}, expected {DRAFT!r} of width 1: "
                "build the bundle again"
            )
        self._context = target
        self._window = target.window(DRAFT)
        stage_chain(self._window)

    def propose(self, tokens: NDArray[np.int64], room: Room, sampler: Sampler) -> Proposal:
        # All but the last token are in the cache: the session asks for drafts only then.
        start = len(tokens) - 1
        count = min(room.depth, room.nodes, self.k, self._context.spec.capacity - start)
        if count < 1:
            return NOTHING
        ids = np.empty(count, np.int64)
        laws = room_for_laws(count, self._context.spec.vocab_size, sampler)
        token = int(tokens[-1])
        for depth in range(count):
            self._run(token, start + depth)
            ids[depth] = token = self._choose(ids[:depth].tolist(), laws, sampler)
        return Proposal(ids, laws)

    def _run(self, token: int, row: int) -> None:
        stage(self._window, np.array([token], np.int64), row)
        run_counted(self._context, self._window, self.tally)

    def _choose(self, drafted: list[int], laws: NDArray[np.float32] | None, sampler: Sampler) -> int:
        if sampler.greedy_ids_suffice:
            return int(self._window.top_ids[0, 0])
        return next_draft(self._context.logits(self._window)[0, 0], drafted, laws, sampler)
