"""Medusa heads start from the last kept row, spend one launch a round, and fill a static tree by rank."""

from dataclasses import replace

import numpy as np
import pytest

from specruntime.drafts import MedusaDraft
from specruntime.drafts.medusa import MedusaProposer
from specruntime.errors import BundleInvalid, EngineFailed
from specruntime.sampling.noise import gumbel
from specruntime.sampling.params import SamplingParams
from tests.runtime.scripted_draft import CANDIDATES, HeadsContext, Story, best_of, medusa_spec
from tests.runtime.scripted_engine import Language, clean_logits, target_spec

GREEDY = SamplingParams()
PROMPT = [5, 9, 2, 40, 7, 11]
PARENTS, RANKS = (0, 0, 0, 1, 1, 2, 4, 4), (0, 1, 3, 0, 1, 0, 0, 2)


class Drafting(Story):
    """A proposer over scripted heads, and the story it drafts for."""

    def __init__(
        self,
        params: SamplingParams = GREEDY,
        *,
        parents: tuple[int, ...] = PARENTS,
        ranks: tuple[int, ...] = RANKS,
        heads: int = 3,
        prompt: list[int] = PROMPT,
    ) -> None:
        super().__init__(Language(), prompt, params)
        spec = medusa_spec(heads, parents, ranks)
        self.context = HeadsContext(spec.graph, self.language, lambda: self.tokens)
        self.draft = MedusaProposer(self.context, spec)
        self.show(self.draft)

    def drafted(self, depth: int = 99, nodes: int = 99) -> list[int]:
        self.context.runs.clear()
        self.last = self.propose(self.draft, depth, nodes)
        return [int(token) for token in self.last.ids]

    def heads(self, count: int) -> list[tuple[list[int], list[float]]]:
        """What each head names: its own depth's candidates after the greedy continuation."""
        tokens = list(self.tokens)
        found = []
        for _ in range(count):
            found.append(best_of(clean_logits(self.language, tokens)))
            tokens.append(found[-1][0][0])
        return found


def test_a_node_is_its_depths_candidate_by_rank() -> None:
    drafting = Drafting()
    for token in (3, 8, 1):
        drafts = drafting.drafted()
        heads = drafting.heads(3)
        depths = (1, 1, 1, 2, 2, 2, 3, 3)
        assert drafts == [heads[depth - 1][0][rank] for depth, rank in zip(depths, RANKS, strict=True)]
        assert drafting.last.parents is not None and drafting.last.ranks is not None
        assert tuple(drafting.last.parents) == PARENTS and tuple(drafting.last.ranks) == RANKS
        assert drafting.last.probabilities is None and drafting.context.runs == ["heads"]
        drafting.commit(drafting.draft, token)


def test_heads_that_know_the_target_are_always_right() -> None:
    """The greedy line of the tree is the target's own, for fifty rounds: no bonus token is missing or doubled."""
    drafting = Drafting(parents=(0, 1, 2), ranks=(0, 0, 0))
    for _ in range(50):
        drafts = drafting.drafted()
        expected: list[int] = []
        for _ in range(4):
            logits = clean_logits(drafting.language, [*drafting.tokens, *expected])
            expected.append(int(np.argmax(logits)))
        assert drafts == expected[:3]
        drafting.commit(drafting.draft, *expected)
        if len(drafting.tokens) > 40:
            drafting.rewind(drafting.draft, 6)
            drafting.show(drafting.draft)
            assert drafting.drafted() == []
            drafting.commit(drafting.draft, 5)


@pytest.mark.parametrize("depth", range(5))
@pytest.mark.parametrize("nodes", [0, 1, 2, 4, 99])
def test_a_proposal_keeps_within_its_room(depth: int, nodes: int) -> None:
    drafting = Drafting()
    drafts = drafting.drafted(depth, nodes)
    if depth == 0 or nodes == 0:
        assert not drafts and not drafting.context.runs
        return
    levels = {1: 3, 2: 6}.get(depth, 8)
    assert len(drafts) == min(nodes, levels)
    assert drafting.last.parents is not None
    assert all(0 <= parent <= node for node, parent in enumerate(drafting.last.parents))


@pytest.mark.parametrize("accept", ["match", "rejection"])
def test_with_sampling_the_candidates_are_ranked_under_the_noise_of_the_answer(accept: str) -> None:
    params = replace(SamplingParams(temperature=0.7, seed=3), accept=accept)  # type: ignore[arg-type]
    drafting = Drafting(params)
    drafting.commit(
        drafting.draft, 4, 5
    )  # two tokens of the answer: the noise is that of the third position on
    drafts = drafting.drafted()
    assert drafting.last.probabilities is None
    ids, logprobs = (np.array(values) for values in drafting.heads(3)[1])
    noisy = logprobs.astype(np.float32) / 0.7 + gumbel(3, 3, ids)
    assert drafts[3:5] == [int(token) for token in ids[np.argsort(-noisy)][:2]]


def test_a_rewind_costs_one_round_of_drafts_and_no_more() -> None:
    drafting = Drafting()
    drafting.commit(drafting.draft, 8, 9, 3)
    drafting.rewind(drafting.draft, 8)
    assert drafting.drafted() == [] and drafting.context.runs == []
    drafting.show(drafting.draft)
    assert drafting.drafted() == [], "nothing new was seen: the features are still of a position that is gone"
    drafting.commit(drafting.draft, 6)
    assert drafting.drafted() == Drafting(prompt=drafting.tokens).drafted() != []


def test_a_rewind_of_what_it_has_not_seen_costs_nothing() -> None:
    drafting = Drafting()
    drafting.tokens.append(17)  # appended, not yet fed
    drafting.rewind(drafting.draft, len(PROMPT))
    assert drafting.drafted() == Drafting().drafted() != []


def test_before_the_first_window_and_after_a_reset_it_is_silent() -> None:
    drafting = Drafting(prompt=[5])
    assert drafting.drafted() == []
    drafting.commit(drafting.draft, 6)
    assert drafting.drafted()
    drafting.draft.reset()
    assert drafting.drafted() == []


def test_a_failure_leaves_nothing_behind() -> None:
    drafting = Drafting()
    expected = drafting.drafted()
    drafting.context.failing = lambda: True
    with pytest.raises(EngineFailed):
        drafting.drafted()
    drafting.context.failing = lambda: False
    drafting.draft.reset()
    drafting.seen = 0
    drafting.show(drafting.draft)
    assert drafting.drafted() == expected
    drafting.draft.close()
    assert drafting.context.closed


def test_a_graph_that_does_not_fit_the_tree_is_refused() -> None:
    def refused(heads: int, parents: tuple[int, ...], ranks: tuple[int, ...], message: str) -> None:
        with pytest.raises(BundleInvalid, match=message):
            medusa_spec(heads, parents, ranks).check(target_spec())

    refused(2, (0, 1, 2), (0, 0, 0), "draft.tree is 3 deep, but there are 2 heads")
    refused(2, (0, 0), (0, CANDIDATES), f"rank {CANDIDATES}, but .* names {CANDIDATES} candidates a row")
    spec = medusa_spec(2, (0,), (0,))

    def changed(**changes: object) -> MedusaDraft:
        profiles = tuple(profile.model_copy(update=changes) for profile in spec.graph.profiles)
        return spec.model_copy(update={"graph": spec.graph.model_copy(update={"profiles": profiles})})

    with pytest.raises(BundleInvalid, match=r"draft\.graph has no profile 'heads', which this draft runs"):
        changed(name="step").check(target_spec())
    with pytest.raises(BundleInvalid, match="profile 'heads' does not compute 'topk_logprobs'"):
        changed(outputs=("topk_ids",)).check(target_spec())
