"""Who wrote each token of a round, chain or tree."""

from collections.abc import Callable

import numpy as np
import pytest

from specruntime.drafts import NOTHING, Proposal
from specruntime.sampling.params import SamplingParams
from specruntime.serving.events import authors_of
from specruntime.verify import Round, corrects
from tests.runtime.drafts.tree_drafts import BUSHY, STAR, Tree, TreeTableDraft
from tests.runtime.scripted_engine import Bench, Language, reference_decode, target_spec

PROMPT = [5, 80, 3, 5, 41]
CHAIN_OF_FOUR = Proposal(np.arange(4))


def tree(shape: Tree) -> Proposal:
    parents, ranks = map(np.array, shape)
    return Proposal(np.arange(len(parents)), None, parents, ranks)


@pytest.mark.parametrize(
    ("proposal", "path", "corrected"),
    [
        (NOTHING, (), False),
        (CHAIN_OF_FOUR, (), True),
        (CHAIN_OF_FOUR, (1, 2, 3), True),
        (CHAIN_OF_FOUR, (1, 2, 3, 4), False),
        (tree(STAR), (), True),
        (tree(STAR), (3,), False),
        (tree(BUSHY), (1,), True),
        (tree(BUSHY), (3,), False),
        (tree(BUSHY), (1, 4), True),
        (tree(BUSHY), (1, 5), False),
        (tree(BUSHY), (1, 4, 8), False),
        (tree(BUSHY), (2, 6, 9), False),
    ],
)
def test_a_path_that_ends_with_a_leaf_is_not_corrected(
    proposal: Proposal, path: tuple[int, ...], corrected: bool
) -> None:
    assert corrects(proposal, path) is corrected


def rounds_of(trees: Callable[[int], Tree | None], right: Callable[[int], int]) -> list[Round]:
    """The rounds after the prompt's of an answer of 60 tokens."""
    answer = reference_decode(Language(), PROMPT, 60, SamplingParams())
    spec = target_spec(verify=(5, 10), prefill=8, capacity=120, features=True)
    session = Bench(target=spec, proposer=TreeTableDraft(len(PROMPT), answer, trees, right)).session
    session.append(PROMPT)
    session.begin(SamplingParams())
    session.round()
    rounds = []
    while session.length < len(PROMPT) + 40:
        rounds.append(session.round())
    return rounds


def told(round: Round) -> tuple[str, ...]:
    return authors_of(round, len(round.tokens))


def test_a_tree_that_is_right_to_a_leaf_ends_with_a_bonus() -> None:
    stars = rounds_of(lambda _: STAR, lambda index: index % 4)
    assert {told(round) for round in stars} == {("accepted", "bonus")}
    bushy = rounds_of(lambda _: BUSHY, lambda index: 0)
    assert {told(round) for round in bushy} == {("accepted", "accepted", "accepted", "bonus")}


def test_a_tree_that_is_wrong_below_an_accepted_node_ends_with_a_correction() -> None:
    never = rounds_of(lambda _: STAR, lambda index: 9)
    assert {told(round) for round in never} == {("correction",)}
    mixed = {told(round) for round in rounds_of(lambda _: BUSHY, lambda index: index % 3)}
    assert mixed == {("accepted", "correction"), ("accepted", "accepted", "bonus")}


def test_a_chain_that_is_right_to_its_end_ends_with_a_bonus() -> None:
    chains = rounds_of(lambda _: None, lambda index: 0)
    assert {told(round) for round in chains} == {("accepted",) * 4 + ("bonus",)}


def test_only_what_was_delivered_has_an_author() -> None:
    (round, *_) = rounds_of(lambda _: BUSHY, lambda index: 0)
    assert authors_of(round, 2) == ("accepted", "accepted")
