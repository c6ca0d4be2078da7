"""Candidates are ranked by the noise they share with the target, or drawn so that the target's distribution is kept."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from specruntime.accept import Distribution, Draws, accept_tree_rejection
from specruntime.drafts.trees import best_first, draw_children, probability_of
from specruntime.sampling.params import SamplingParams
from specruntime.sampling.sampler import Sampler
from tests.runtime.scripted_draws import (
    LawOfPrefix,
    ScriptedDraws,
    Tokens,
    largest_error,
    law_of_answers,
    random_laws,
)

VOCAB = 3
Draw = Callable[[Distribution, int, Draws], list[int]]


def out_of_order(distribution: Distribution, count: int, draws: Draws) -> list[int]:
    """The mistake: siblings are handed over by id, not as they were drawn."""
    return sorted(draw_children(distribution, count, draws))


def most_likely(distribution: Distribution, count: int, draws: Draws) -> list[int]:
    """The mistake: the most likely tokens, declared as drawn."""
    return [int(token) for token in np.argsort(-distribution, stable=True)[:count] if distribution[token] > 0]


def tree_round(draws: ScriptedDraws, p: LawOfPrefix, q: LawOfPrefix, draw: Draw) -> Sequence[int]:
    """Two children of the root and two of the first of them, then the shipped rule."""
    parents, ids = [-1], [0]
    paths: list[Tokens] = [()]
    laws = np.zeros((5, VOCAB))
    for row in (0, 1):
        laws[row] = q(paths[row])
        for token in draw(laws[row], 2, draws):
            parents.append(row)
            ids.append(token)
            paths.append((*paths[row], token))
    _, emitted = accept_tree_rejection(
        parents, np.array(ids), laws, lambda _, pending: p(tuple(pending)), draws
    )
    return emitted


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("zeros", [0.0, 0.6])
def test_drawn_trees_leave_the_law_of_the_target(seed: int, zeros: float) -> None:
    p, q = random_laws(VOCAB, seed), random_laws(VOCAB, seed + 100, zeros=zeros)
    distribution = law_of_answers(lambda draws: tree_round(draws, p, q, draw_children), p, 3)
    assert largest_error(distribution, p, 3) < 1e-9


@pytest.mark.parametrize("draw", [out_of_order, most_likely])
def test_the_enumeration_finds_children_drawn_otherwise(draw: Draw) -> None:
    p, q = random_laws(VOCAB, 1), random_laws(VOCAB, 101)
    distribution = law_of_answers(lambda draws: tree_round(draws, p, q, draw), p, 3)
    assert largest_error(distribution, p, 3) > 1e-3


def test_a_law_gives_no_more_children_than_it_has_tokens_and_is_left_as_it_was() -> None:
    distribution = np.array([0.0, 0.25, 0.0, 0.75], np.float32)
    before = distribution.copy()
    assert sorted(draw_children(distribution, 5, ScriptedDraws(()))) == [1, 3]
    assert np.array_equal(distribution, before)


def test_at_temperature_zero_candidates_stay_as_the_draft_ranked_them() -> None:
    ids, logprobs = np.array([[4, 2], [9, 1]]), np.array([[-0.1, -3.0], [-0.2, -2.0]], np.float32)
    ranked, beliefs = best_first(ids, logprobs, Sampler(SamplingParams(), 10, (), [1]), 3)
    assert ranked is ids and beliefs is logprobs


@pytest.mark.parametrize("ahead", [0, 2])
def test_above_it_the_leader_is_the_token_the_target_would_sample(ahead: int) -> None:
    """For a draft whose candidates cover the whole distribution; beliefs are a distribution in descending order."""
    rng = np.random.default_rng(5)
    for seed in range(50):
        sampler = Sampler(SamplingParams(temperature=0.8, seed=seed), 12, (), [1])
        sampler.commit([3, 4])
        logits = rng.normal(size=(3, 12)).astype(np.float32) * 2
        order = np.argsort(-logits, axis=1)
        sorted_logits = np.take_along_axis(logits, order, axis=1)
        logprobs = sorted_logits - np.log(np.exp(sorted_logits).sum(axis=1, keepdims=True))
        ids, beliefs = best_first(order, logprobs, sampler, ahead)
        for row in range(3):
            assert ids[row, 0] == sampler.sample(logits[row], [0] * ahead)
            assert sorted(ids[row].tolist()) == list(range(12))
            one, belief = best_first(order[row], logprobs[row], sampler, ahead)
            assert np.array_equal(one, ids[row]) and np.allclose(belief, beliefs[row])
        assert (np.diff(beliefs, axis=1) <= 0).all() and np.allclose(np.exp(beliefs).sum(axis=1), 1)


def test_the_probability_of_a_token_that_is_no_candidate_is_at_most_the_lasts() -> None:
    ids, logprobs = np.array([7, 3, 5]), np.log(np.array([0.5, 0.3, 0.1]))
    assert [round(probability_of(token, ids, logprobs), 6) for token in (7, 3, 5, 9)] == [0.5, 0.3, 0.1, 0.1]
