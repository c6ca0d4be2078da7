"""What an EAGLE draft proposes under sampling: with the answer's noise, or drawn from distributions that it reports."""

from dataclasses import replace

import numpy as np
import pytest

from specruntime.drafts.eagle import DynamicTree
from specruntime.manifest.schema import TreeSpec
from specruntime.sampling.params import SamplingParams
from specruntime.sampling.sampler import Sampler
from tests.runtime.drafts.draft_distributions import law_of_first, require_drawn_from
from tests.runtime.drafts.eagle_drafting import (
    DYNAMIC,
    GREEDY,
    PROMPT,
    REJECTION,
    SAMPLED,
    TREES,
    Drafting,
    walk,
)
from tests.runtime.scripted_engine import VOCAB, Language, clean_logits


@pytest.mark.parametrize("params", [SAMPLED, replace(SAMPLED, top_p=0.9, repetition_penalty=1.3)])
def test_match_drafts_with_the_noise_of_the_answer(params: SamplingParams) -> None:
    drafting = Drafting(params, laws=True)
    drafts = drafting.drafted()
    assert drafts == drafting.expected(4) and drafting.last.probabilities is None
    assert drafting.context.runs == ["extend_5_law", "step_law", "step_law", "step_law"]


@pytest.mark.parametrize("shape", ["chain", "tree", "dynamic"])
def test_without_laws_the_candidates_are_ranked_under_the_noise(shape: str) -> None:
    """Better than the draft's own ranking: the target takes what leads under the noise, and that is known."""
    wide = TreeSpec(parents=(0, 0, 1, 1), ranks=(0, 1, 0, 1))
    rates = []
    for coupled in (True, False):
        accepted = 0
        for seed in range(40):
            params = SamplingParams(temperature=1.0, seed=seed)
            drafting = Drafting(
                params,
                k=2,
                tree=wide if shape == "tree" else None,
                dynamic=DynamicTree(nodes=4, branch=2) if shape == "dynamic" else None,
            )
            sampler = drafting.sampler
            if not coupled:
                drafting.sampler = Sampler(GREEDY, VOCAB, (), PROMPT)
            drafting.drafted()
            drafting.sampler = sampler
            accepted += len(walk(drafting, drafting.last)[0])
        rates.append(accepted / 80)
    assert rates[0] > rates[1] + 0.15 and rates[0] > 0.5


def test_rejection_reports_the_law_each_draft_of_a_chain_was_drawn_from() -> None:
    firsts = []
    for seed in range(150):
        drafting = Drafting(replace(REJECTION, seed=seed), k=2, laws=True)
        drafts = drafting.drafted()
        assert len(drafts) == 2
        law = law_of_first(drafting.last, drafts, PROMPT, drafting.language, drafting.sampler)
        firsts.append(drafts[0])
    require_drawn_from(law, firsts)


def test_rejection_draws_siblings_without_replacement_from_their_parents_law() -> None:
    tree = TREES["bush"]
    seconds = np.zeros(VOCAB)
    for seed in range(120):
        drafting = Drafting(replace(REJECTION, seed=seed), tree=tree, laws=True)
        drafting.drafted()
        proposal = drafting.last
        assert proposal.parents is not None and proposal.probabilities is not None
        assert proposal.probabilities.shape == (len(proposal.ids) + 1, VOCAB)
        paths: list[list[int]] = [[]]
        for token, parent in zip(proposal.ids.tolist(), proposal.parents.tolist(), strict=True):
            paths.append([*paths[parent], token])
        assert len({tuple(path) for path in paths}) == len(paths), "siblings differ"
        for row in set(proposal.parents.tolist()):
            logits = clean_logits(drafting.language, [*PROMPT, *paths[row]])
            law = drafting.sampler.distribution(logits, paths[row])
            assert np.array_equal(proposal.probabilities[row], law)
        firsts, other = (paths[row + 1][0] for row in np.flatnonzero(proposal.parents == 0)[:2])
        assert firsts != other
        seconds[other] += 1
        root = proposal.probabilities[0].astype(np.float64)
    second = np.array(
        [sum(root[i] * root[j] / (1 - root[i]) for i in range(VOCAB) if i != j) for j in range(VOCAB)]
    )
    assert np.abs(seconds / 120 - second).max() < 0.12
    assert drafting.context.runs == ["extend_5_law", "level_1_law", "level_2_law", "level_3_law"]


def test_nodes_of_one_level_do_not_share_their_random_numbers() -> None:
    tree = TreeSpec(parents=(0, 0, 1, 2), ranks=(0, 1, 0, 0))
    flat = Language(habit=0.0)
    flat.logits = lambda rows: np.zeros(VOCAB, np.float32)  # type: ignore[method-assign]
    equal = 0
    for seed in range(60):
        drafting = Drafting(
            SamplingParams(temperature=1.0, seed=seed, accept="rejection"),
            tree=tree,
            laws=True,
            language=flat,
        )
        drafts = drafting.drafted()
        equal += drafts[2] == drafts[3]
    assert equal < 10


def test_a_law_with_fewer_tokens_than_the_tree_has_children_makes_a_smaller_tree() -> None:
    params = replace(REJECTION, top_k=2, frequency_penalty=0.0)
    for seed in range(20):
        drafting = Drafting(replace(params, seed=seed), tree=TREES["bush"], laws=True)
        drafting.drafted()
        proposal = drafting.last
        assert proposal.parents is not None and proposal.probabilities is not None
        assert np.bincount(proposal.parents).max() == 2 and len(proposal.ids) == 9
        for row, parent in enumerate(proposal.parents.tolist(), start=1):
            assert 0 <= parent < row
            assert proposal.probabilities[parent][proposal.ids[row - 1]] > 0


@pytest.mark.parametrize("shape", ["chain", "tree", "dynamic"])
def test_rejection_without_laws_or_at_temperature_zero_is_deterministic(shape: str) -> None:
    tree = TREES["bush"] if shape == "tree" else None
    dynamic = DYNAMIC if shape == "dynamic" else None
    for params, laws in ((REJECTION, shape == "dynamic"), (SamplingParams(accept="rejection"), True)):
        drafting = Drafting(params, tree=tree, dynamic=dynamic, laws=laws)
        first = drafting.drafted()
        assert first and drafting.last.probabilities is None
        assert drafting.drafted() == first


@pytest.mark.parametrize("params", [GREEDY, SAMPLED])
def test_neither_greedy_nor_coupled_trees_read_logits(params: SamplingParams) -> None:
    for shape in ({"tree": TREES["bush"]}, {"dynamic": DYNAMIC}, {}):
        drafting = Drafting(params, **shape)
        drafting.context.logits = None  # type: ignore[assignment,method-assign]
        assert drafting.drafted()


@pytest.mark.parametrize("params", [SAMPLED, REJECTION])
@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_banning_all_that_a_reduced_draft_knows_ends_the_draft_and_not_the_answer(
    params: SamplingParams, shape: str
) -> None:
    """The target may know further tokens, so plain decoding would go on."""
    language = Language()
    known = language.logits
    language.logits = lambda rows: np.where(np.arange(VOCAB) < 10, known(rows), -np.inf)  # type: ignore[method-assign]
    banned = replace(params, logit_bias={token: float("-inf") for token in range(10)})
    drafting = Drafting(banned, language=language, laws=True, tree=TREES["bush"] if shape == "tree" else None)
    if shape == "chain" or params.accept == "rejection":
        assert drafting.drafted() == []
    drafting.params = replace(params, logit_bias={})
    drafting.sampler = Sampler(drafting.params, VOCAB, (), PROMPT)
    assert drafting.drafted()
