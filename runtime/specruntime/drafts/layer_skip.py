"""Kind `layer_skip`: the target drafts for itself with some of its layers (https://arxiv.org/abs/2404.16710).

It runs the profile `draft` of the session's own context. The layers it keeps have the committed rows in the target's
cache already, so there is nothing to catch up with; step d writes row `cache length + d` of them, which the
verification of the same round writes again. Holds no state of its own.
"""

from itertools import pairwise
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from specruntime.drafts.draft import NOTHING, Draft, Proposal, Room
from specruntime.drafts.kind import ChainSpec
from specruntime.drafts.model import ModelProposer
from specruntime.drafts.trees import next_draft, room_for_probabilities
from specruntime.engines.protocol import Context
from specruntime.engines.windows import run_counted, stage, stage_chain
from specruntime.manifest.contracts import DRAFTING, MODEL
from specruntime.manifest.draft import check_one_row
from specruntime.manifest.graph import SELF_PROFILE, GraphSpec, Profile
from specruntime.manifest.numbers import MAX_LAYERS, Index
from specruntime.manifest.refusals import refuse
from specruntime.sampling.sampler import Sampler


class LayerSkipDraft(ChainSpec):
    """The target with `layers` of its own: profile `draft` of the target's graph, or `graph` where that is a copy."""

    contract: ClassVar = MODEL
    c_numbers: ClassVar = {"layer_skip": (3, "the target with some of its layers")}

    kind: Literal["layer_skip"] = "layer_skip"
    layers: Annotated[tuple[Index, ...], Field(min_length=1, max_length=MAX_LAYERS)]
    graph: GraphSpec | None = None

    def check(self, target: GraphSpec) -> None:
        layers = self.layers
        if any(later <= earlier for earlier, later in pairwise(layers)):
            refuse(f"draft.layers is {list(layers)}, expected ascending layers, each once")
        if layers[-1] >= target.layers:
            refuse(f"draft.layers has {layers[-1]}, but the target has layers 0 to {target.layers - 1}")
        if len(layers) == target.layers:
            refuse(f"draft.layers has all {len(layers)} layers of the target, expected fewer")
        if self.graph is None:
            _check_second_path(target)
        elif self.graph.layers != len(layers):
            refuse(f"draft.graph has {self.graph.layers} layers, but draft.layers names {len(layers)}")

    def proposer(self, own: Context | None, target: Context | None, vocab_size: int) -> Draft:
        if own is not None:
            return ModelProposer(own, k=self.k)
        assert target is not None, "without a graph of its own it drafts through the session's context"
        return LayerSkipProposer(target, self)

    def timed_profiles(self, target: GraphSpec) -> tuple[Profile, ...]:
        return target.profiles if self.graph is None else self.graph.profiles


def _check_second_path(target: GraphSpec) -> None:
    profile = check_one_row(target, SELF_PROFILE, "target")
    for output in (f"{DRAFTING}logits", f"{DRAFTING}top_ids"):
        if output not in (tensor.name for tensor in target.outputs) or not profile.computes(output):
            refuse(
                f"draft.graph is not given, and the target's profile {SELF_PROFILE!r} does not compute {output!r}"
            )


class LayerSkipProposer(Draft):
    """Proposes what the target's kept layers continue with, for the session that owns `target` and verifies next."""

    def __init__(self, target: Context, spec: LayerSkipDraft) -> None:
        """Never closes `target`."""
        super().__init__(spec.k)
        self._context = target
        self._window = target.window(SELF_PROFILE)
        stage_chain(self._window)

    def propose(self, tokens: NDArray[np.int64], room: Room, sampler: Sampler) -> Proposal:
        # All but the last token are in the cache: the session asks for drafts only then.
        start = len(tokens) - 1
        count = min(room.depth, room.nodes, self.k, self._context.spec.capacity - start)
        if count < 1:
            return NOTHING
        ids: list[int] = []
        probabilities = room_for_probabilities(count, self._context.spec.vocab_size, sampler)
        while len(ids) < count and not sampler.ended(ids):
            self._run(ids[-1] if ids else int(tokens[-1]), start + len(ids))
            token = self._choose(ids, probabilities, sampler)
            if token is None:
                break
            ids.append(token)
        return Proposal(np.array(ids, np.int64), None if probabilities is None else probabilities[: len(ids)])

    def _run(self, token: int, row: int) -> None:
        stage(self._window, np.array([token], np.int64), row)
        run_counted(self._context, self._window, self.counters)

    def _choose(
        self, drafted: list[int], probabilities: NDArray[np.float32] | None, sampler: Sampler
    ) -> int | None:
        if sampler.greedy_ids_suffice:
            return int(self._window.top_ids[0, 0])
        return next_draft(self._context.logits(self._window)[0, 0], drafted, probabilities, sampler)
