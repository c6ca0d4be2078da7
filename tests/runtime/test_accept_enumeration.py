"""The output distribution of every accept rule equals the target's, summed over every draft, acceptance and residual
branch.

The shipped functions run in float64. Each rule has controls: the same harness must see a broken rule.
"""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from specruntime import accept
from specruntime.accept import accept_match, accept_rejection, accept_tree_match, accept_tree_rejection
from tests.runtime.scripted_draws import (
    LawOfPrefix,
    ScriptedDraws,
    Tokens,
    largest_error,
    law_of_answers,
    outcomes,
    random_laws,
)

EXACT = 1e-9
VISIBLE = 1e-3  # what a control must exceed
CHAINS = [(3, 1), (3, 2), (3, 3), (4, 2), (5, 1), (5, 2)]  # vocabulary, drafts
TREES = [  # parents, vocabulary
    ((-1, 0, 0), 3),
    ((-1, 0, 0, 0), 3),
    ((-1, 0, 0, 0), 5),
    ((-1, 0, 0, 1, 1), 3),
    ((-1, 0, 0, 2, 3), 3),
    ((-1, 0, 1, 0, 1), 3),
]
Round = Callable[[ScriptedDraws], Sequence[int]]


def chain_round(p: LawOfPrefix, q: LawOfPrefix, k: int, declared: LawOfPrefix | None = None) -> Round:
    """Drafts k tokens from q and judges them by rejection, declared as drawn from `declared`."""

    def run(draws: ScriptedDraws) -> list[int]:
        drafted: Tokens = ()
        laws: list[NDArray[np.float64]] = []
        for _ in range(k):
            laws.append((declared or q)(drafted))
            drafted = (*drafted, draws.categorical(q(drafted)))
        return accept_rejection(drafted, np.array(laws), lambda _, pending: p(tuple(pending)), draws)

    return run


def tree_round(
    p: LawOfPrefix, q: LawOfPrefix, parents: Sequence[int], declared: LawOfPrefix | None = None
) -> Round:
    """Draws each node's children from q without replacement and judges the tree by rejection."""

    def run(draws: ScriptedDraws) -> list[int]:
        prefixes: list[Tokens] = [()]
        left = {0: q(())}
        for node, parent in enumerate(parents[1:], start=1):
            token = draws.categorical(left[parent])
            left[parent] = np.where(np.arange(left[parent].size) == token, 0, left[parent])
            prefixes.append((*prefixes[parent], token))
            left[node] = q(prefixes[node])
        ids = [-1] + [prefix[-1] for prefix in prefixes[1:]]
        laws = np.array([(declared or q)(prefix) for prefix in prefixes])
        path, emitted = accept_tree_rejection(parents, ids, laws, lambda _, pending: p(tuple(pending)), draws)
        assert [ids[node] for node in path] == emitted[:-1]
        return emitted

    return run


def assert_exact(run: Round, p: LawOfPrefix, length: int) -> None:
    law = law_of_answers(run, p, length)
    assert sum(law.values()) == pytest.approx(1, abs=EXACT)
    assert largest_error(law, p, length) < EXACT


def assert_wrong(run: Round, p: LawOfPrefix, length: int) -> None:
    assert largest_error(law_of_answers(run, p, length), p, length) > VISIBLE


def rounds_end(parents: Sequence[int]) -> int:
    """The most tokens one round over the tree emits: its depth and one."""
    depth = [0]
    for parent in parents[1:]:
        depth.append(depth[parent] + 1)
    return max(depth) + 1


def uniform(vocab: int) -> LawOfPrefix:
    return lambda _: np.full(vocab, 1 / vocab)


@pytest.mark.parametrize(("vocab", "k"), CHAINS)
@pytest.mark.parametrize("zeros", [0.0, 0.5])
def test_chain_rejection_has_the_law_of_the_target(vocab: int, k: int, zeros: float) -> None:
    p, q = random_laws(vocab, 1, zeros=zeros), random_laws(vocab, 2, zeros=zeros)
    assert_exact(chain_round(p, q, k), p, k + 1)


@pytest.mark.parametrize(("vocab", "k"), CHAINS)
def test_a_draft_equal_to_the_target_is_always_accepted(vocab: int, k: int) -> None:
    p = random_laws(vocab, 1, zeros=0.3)
    assert_exact(chain_round(p, p, k), p, k + 1)
    assert {len(tokens) for tokens, _ in outcomes(chain_round(p, p, k))} == {k + 1}


@pytest.mark.parametrize(("vocab", "k"), CHAINS)
def test_chain_rejection_of_a_deterministic_draft_has_the_law_of_the_target(vocab: int, k: int) -> None:
    p = random_laws(vocab, 1, zeros=0.3)
    drafted = [(3 * i + 1) % vocab for i in range(k)]
    assert_exact(lambda draws: accept_rejection(drafted, None, lambda _, t: p(tuple(t)), draws), p, k + 1)


@pytest.mark.parametrize(("vocab", "k"), CHAINS)
def test_chain_rejection_accepts_with_the_overlap_of_the_laws(vocab: int, k: int) -> None:
    p, q = random_laws(vocab, 1), random_laws(vocab, 2)
    first = sum(weight for tokens, weight in outcomes(chain_round(p, q, k)) if len(tokens) > 1)
    assert first == pytest.approx(np.minimum(p(()), q(())).sum(), abs=EXACT)


def test_control_chain_with_a_wrong_q() -> None:
    p, q = random_laws(3, 1), random_laws(3, 2)
    assert_wrong(chain_round(p, q, 2, declared=uniform(3)), p, 3)


def test_control_chain_that_corrects_from_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accept, "_residual", lambda target, source: target)
    p, q = random_laws(3, 1), random_laws(3, 2)
    assert_wrong(chain_round(p, q, 2), p, 3)


def test_control_chain_judged_by_the_next_row() -> None:
    p, q = random_laws(3, 1), random_laws(3, 2)
    shifted = chain_round(lambda tokens: p((*tokens, 0)), q, 2)
    assert_wrong(shifted, p, 3)


@pytest.mark.parametrize(("vocab", "k"), CHAINS)
def test_chain_match_has_the_law_of_the_target(vocab: int, k: int) -> None:
    p, q = random_laws(vocab, 1, zeros=0.3), random_laws(vocab, 2)

    def run(draws: ScriptedDraws) -> list[int]:
        drafted: Tokens = ()
        for _ in range(k):
            drafted = (*drafted, draws.categorical(q(drafted)))
        return accept_match(drafted, lambda _, pending: draws.categorical(p(tuple(pending))))

    assert_exact(run, p, k + 1)


def test_control_match_that_keeps_a_token_of_the_draft() -> None:
    p = random_laws(3, 1)

    def run(draws: ScriptedDraws) -> list[int]:
        emitted = accept_match([1, 2], lambda _, pending: draws.categorical(p(tuple(pending))))
        return [*emitted[:-1], 1]

    assert_wrong(run, p, 3)


def test_control_match_judged_without_the_drafts_before_the_row() -> None:
    p = random_laws(3, 1)
    assert_wrong(lambda draws: accept_match([1, 2], lambda _, pending: draws.categorical(p(()))), p, 3)


@pytest.mark.parametrize(("parents", "vocab"), TREES)
def test_deterministic_tree_has_the_law_of_the_target(parents: Tokens, vocab: int) -> None:
    p = random_laws(vocab, 1, zeros=0.3)
    ids = [-1, *(node % vocab for node in range(1, len(parents)))]

    def run(draws: ScriptedDraws) -> list[int]:
        return accept_tree_match(parents, ids, lambda _, pending: draws.categorical(p(tuple(pending))))[1]

    assert_exact(run, p, rounds_end(parents))


@pytest.mark.parametrize(("parents", "vocab"), TREES)
def test_deterministic_tree_accepts_as_rejection_with_certain_drafts(parents: Tokens, vocab: int) -> None:
    p = random_laws(vocab, 1)
    ids = [-1, *(node % vocab for node in range(1, len(parents)))]
    children = {ids[node] for node, parent in enumerate(parents) if parent == 0}

    def run(draws: ScriptedDraws) -> list[int]:
        return accept_tree_match(parents, ids, lambda _, pending: draws.categorical(p(tuple(pending))))[0]

    accepted = sum(weight for path, weight in outcomes(run) if path)
    assert accepted == pytest.approx(sum(p(())[token] for token in children), abs=EXACT)


def test_control_tree_that_reads_the_row_of_its_first_child() -> None:
    p = random_laws(3, 1)
    parents, ids = (-1, 0, 0), [-1, 1, 2]
    by_row: dict[int, Tokens] = {0: (), 1: (1,), 2: (1,)}
    assert_wrong(
        lambda draws: accept_tree_match(parents, ids, lambda row, _: draws.categorical(p(by_row[row])))[1],
        p,
        3,
    )


@pytest.mark.parametrize(("parents", "vocab"), TREES)
@pytest.mark.parametrize("zeros", [0.0, 0.5])
def test_sampled_tree_has_the_law_of_the_target(parents: Tokens, vocab: int, zeros: float) -> None:
    p, q = random_laws(vocab, 1, zeros=zeros), random_laws(vocab, 2)
    assert_exact(tree_round(p, q, parents), p, rounds_end(parents))


@pytest.mark.parametrize("k", [1, 2, 3])
def test_a_tree_without_siblings_is_a_chain(k: int) -> None:
    p, q = random_laws(3, 1), random_laws(3, 2)
    tree = law_of_answers(tree_round(p, q, tuple(range(-1, k))), p, k + 1)
    chain = law_of_answers(chain_round(p, q, k), p, k + 1)
    assert tree == pytest.approx(chain, abs=EXACT)


def test_control_tree_with_a_wrong_q() -> None:
    p, q = random_laws(3, 1), random_laws(3, 2)
    assert_wrong(tree_round(p, q, (-1, 0, 0), declared=uniform(3)), p, 2)


def test_control_tree_whose_residual_is_not_renormalised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accept, "_residual", lambda target, source: np.maximum(target - source, 0))
    p, q = random_laws(3, 1), random_laws(3, 2)
    assert_wrong(tree_round(p, q, (-1, 0, 0)), p, 2)


@pytest.mark.parametrize("kind", ["kept", "zeroed only"])
def test_control_tree_whose_q_keeps_a_rejected_sibling(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(source: accept.Distribution, token: int) -> accept.Distribution:
        return source if kind == "kept" else np.where(np.arange(source.size) == token, 0, source)

    monkeypatch.setattr(accept, "_without", broken)
    p, q = random_laws(4, 1), random_laws(4, 2)
    assert_wrong(tree_round(p, q, (-1, 0, 0)), p, 2)
