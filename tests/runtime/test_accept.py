"""The accept rules case by case: what is emitted, which paths are taken, and the golden values of the acceptance and
speed-up formulas.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from specruntime.accept import (
    accept_greedy,
    accept_match,
    accept_rejection,
    accept_tree_match,
    accept_tree_rejection,
)
from specruntime.errors import InvalidArgument
from specruntime.sampling.noise import NoiseStream
from tests.runtime.scripted_draws import ScriptedDraws, outcomes


class FixedDraws:
    """u is the same number at every judgement; draws take the most likely index."""

    def __init__(self, u: float) -> None:
        self._u = u

    def below(self, probability: float, /) -> bool:
        return self._u < probability

    def categorical(self, weights: NDArray[np.floating], /) -> int:
        return int(np.argmax(weights))


@pytest.mark.parametrize(
    ("draft", "top", "emitted"),
    [
        ([], [7], [7]),
        ([7], [7, 8], [7, 8]),
        ([6], [7, 8], [7]),
        ([7, 8, 9], [7, 8, 9, 1], [7, 8, 9, 1]),
        ([7, 0, 9], [7, 8, 9, 1], [7, 8]),
        ([0, 8, 9], [7, 8, 9, 1], [7]),
        ([7], [7, 8, 99, 99], [7, 8]),  # padded rows are not looked at
    ],
)
def test_greedy_emits_the_matching_prefix_and_one_token(
    draft: list[int], top: list[int], emitted: list[int]
) -> None:
    assert accept_greedy(draft, top) == emitted
    assert accept_greedy(np.array(draft, np.int64), np.array(top)) == emitted


@given(st.lists(st.integers(0, 3), max_size=8), st.lists(st.integers(0, 3), min_size=9, max_size=9))
def test_every_rule_emits_one_token_more_than_it_accepts(draft: list[int], top: list[int]) -> None:
    emitted = accept_greedy(draft, top)
    accepted = len(emitted) - 1
    assert emitted[:accepted] == draft[:accepted]
    assert emitted == top[: accepted + 1]
    assert accepted == len(draft) or draft[accepted] != top[accepted]


def test_match_samples_each_row_once_with_what_was_emitted_before_it() -> None:
    asked: list[tuple[int, tuple[int, ...]]] = []

    def sample(row: int, pending: object) -> int:
        asked.append((row, tuple(pending)))  # type: ignore[arg-type]
        return [4, 5, 6, 7][row]

    assert accept_match([4, 5, 0], sample) == [4, 5, 6]
    assert asked == [(0, ()), (1, (4,)), (2, (4, 5))]


def test_match_emits_the_same_whatever_is_drafted() -> None:
    answer = [2, 0, 1, 1]
    for draft in ([], [2], [0], [2, 0], [2, 2], [2, 0, 1], [1, 0, 1]):
        emitted = accept_match(draft, lambda row, _: answer[row])
        assert emitted == answer[: len(emitted)]


def test_rejection_is_strict() -> None:
    p, q = np.array([0.25, 0.75]), np.array([[0.5, 0.5]])
    assert accept_rejection([0], q, lambda *_: p, FixedDraws(0.4999)) == [0, 1]
    assert accept_rejection([0], q, lambda *_: p, FixedDraws(0.5)) == [1]


def test_a_token_the_target_cannot_emit_is_rejected_even_by_u_of_zero() -> None:
    p, q = np.array([0.0, 1.0]), np.array([[1.0, 0.0]])
    assert accept_rejection([0], q, lambda *_: p, FixedDraws(0.0)) == [1]
    assert accept_tree_rejection([-1, 0], [-1, 0], q, lambda *_: p, FixedDraws(0.0)) == ([], [1])


def test_a_zero_residual_falls_back_to_the_target() -> None:
    p, rounded_up = np.array([0.25, 0.75]), np.array([[0.9, 0.8]])
    assert accept_rejection([1], rounded_up, lambda *_: p, FixedDraws(1.0)) == [1]


def test_a_token_its_declared_law_cannot_have_drawn_is_refused() -> None:
    p, q = np.array([0.5, 0.5]), np.array([[1.0, 0.0]])
    with pytest.raises(InvalidArgument, match="drafted token 1 has probability"):
        accept_rejection([1], q, lambda *_: p, FixedDraws(0.0))
    with pytest.raises(InvalidArgument, match="drafted token 1 has probability"):
        accept_tree_rejection([-1, 0], [-1, 1], q, lambda *_: p, FixedDraws(0.0))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_rules_keep_the_dtype_of_the_laws(dtype: type[np.floating]) -> None:
    seen: list[np.dtype[np.floating]] = []

    class Spy(FixedDraws):
        def categorical(self, weights: NDArray[np.floating], /) -> int:
            seen.append(weights.dtype)
            return super().categorical(weights)

    p, q = np.array([0.25, 0.75], dtype), np.array([[0.5, 0.5]] * 3, dtype)
    accept_rejection([0], q, lambda *_: p, Spy(0.9))
    accept_rejection([0], None, lambda *_: p, Spy(0.9))
    accept_tree_rejection([-1, 0, 0], [-1, 0, 1], q, lambda *_: p, Spy(2.0))
    assert seen == [np.dtype(dtype)] * 3


def test_the_laws_given_are_not_written_to() -> None:
    p, q = np.array([0.25, 0.75]), np.array([[0.5, 0.5]] * 3)
    accept_tree_rejection([-1, 0, 0], [-1, 0, 1], q, lambda *_: p, FixedDraws(2.0))
    assert p.tolist() == [0.25, 0.75]
    assert q.tolist() == [[0.5, 0.5]] * 3


TREE = [-1, 0, 0, 1, 1, 2, 5]
IDS = [-1, 3, 4, 3, 4, 3, 9]


@pytest.mark.parametrize(
    ("answer", "path"),
    [
        ([9], []),
        ([3, 9], [1]),
        ([3, 4, 9], [1, 4]),
        ([4, 3, 9, 1], [2, 5, 6]),
        ([4, 4], [2]),
        ([3, 3, 0], [1, 3]),
    ],
)
def test_tree_match_follows_the_child_that_equals_the_sample(answer: list[int], path: list[int]) -> None:
    taken, emitted = accept_tree_match(TREE, IDS, lambda _, pending: answer[len(pending)])
    assert (taken, emitted) == (path, answer)
    assert taken == sorted(set(taken))
    assert [IDS[node] for node in taken] == emitted[:-1]


def test_tree_match_reads_the_row_of_the_node_it_stands_on() -> None:
    sample_of_row = {0: 4, 2: 3, 5: 9, 6: 0}
    assert accept_tree_match(TREE, IDS, lambda row, _: sample_of_row[row]) == ([2, 5, 6], [4, 3, 9, 0])


def test_of_equal_siblings_the_first_is_followed() -> None:
    assert accept_tree_match([-1, 0, 0], [-1, 5, 5], lambda *_: 5)[0] == [1]


def test_a_tree_of_one_node_is_a_plain_step() -> None:
    assert accept_tree_match([-1], [-1], lambda *_: 5) == ([], [5])
    law = np.array([0.0, 1.0])
    assert accept_tree_rejection([-1], [-1], law[None], lambda *_: law, FixedDraws(0.0)) == ([], [1])


def expected_tokens(acceptance: float, k: int) -> float:
    """Tokens per round of the shipped rule for drafts accepted with chance A each, summed over all outcomes."""
    p, q = np.array([acceptance, 1 - acceptance]), np.array([[1.0, 0.0]] * k)

    def run(draws: ScriptedDraws) -> int:
        return len(accept_rejection([0] * k, q, lambda *_: p, draws))

    return sum(length * weight for length, weight in outcomes(run))


@pytest.mark.parametrize(("acceptance", "k", "tokens"), [(0.7, 4, 2.773), (0.8, 4, 3.362), (0.9, 7, 5.695)])
def test_law_3_tokens_per_round(acceptance: float, k: int, tokens: float) -> None:
    assert expected_tokens(acceptance, k) == pytest.approx(tokens, abs=5e-4)
    closed_form = (1 - acceptance ** (k + 1)) / (1 - acceptance)
    assert expected_tokens(acceptance, k) == pytest.approx(closed_form, abs=1e-12)


@pytest.mark.parametrize(
    ("acceptance", "cost", "best_k", "speed_up"),
    [(0.8, 0.05, 8, 3.09), (0.7, 0.1, 4, 1.98), (0.6, 0.2, 2, 1.40), (0.5, 0.5, 1, 1.00)],
)
def test_law_4_best_k_and_speed_up(acceptance: float, cost: float, best_k: int, speed_up: float) -> None:
    by_k = {k: expected_tokens(acceptance, k) / (k * cost + 1) for k in range(1, 13)}
    assert max(by_k, key=lambda k: (by_k[k], -k)) == best_k
    assert by_k[best_k] == pytest.approx(speed_up, abs=5e-3)


def test_rejection_with_the_shipped_stream_has_the_law_of_the_target() -> None:
    p = np.array([0.5, 0.3, 0.2, 0.0], np.float32)
    q = np.array([0.1, 0.2, 0.3, 0.4], np.float32)
    rounds = 20_000
    counts = np.zeros(4)
    for position in range(rounds):
        drafted = NoiseStream(5, position, "draft").categorical(q)
        counts[accept_rejection([drafted], q[None], lambda *_: p, NoiseStream(5, position, "accept"))[0]] += 1
    assert counts[3] == 0
    expected = rounds * p[:3]
    assert (
        (counts[:3] - expected) ** 2 / expected
    ).sum() < 13.8  # 99.9 % of chi-square with 2 degrees of freedom
