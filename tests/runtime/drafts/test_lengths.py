"""Estimates behind dynamic length: formulas of acceptance and speed-up, misleading times, the bound on losses."""

import numpy as np
import pytest

from specruntime.drafts.lengths import Acceptance, Credit, StepTimes, TreeAcceptance, plans


@pytest.mark.parametrize(("rate", "k", "tokens"), [(0.7, 4, 2.773), (0.8, 4, 3.362), (0.9, 7, 5.695)])
def test_expected_tokens_are_those_of_law_3(rate: float, k: int, tokens: float) -> None:
    assert 1 + Acceptance(k, (rate,)).expected()[-1] == pytest.approx(tokens, abs=5e-4)


@pytest.mark.parametrize(
    ("rate", "cost", "k", "speed_up"), [(0.8, 0.05, 8, 3.09), (0.7, 0.1, 4, 1.98), (0.6, 0.2, 2, 1.40)]
)
def test_the_fastest_plan_is_that_of_law_4(rate: float, cost: float, k: int, speed_up: float) -> None:
    sizes = range(1, 16)
    flat = StepTimes({1: 1.0, 16: 1.0})
    found = plans(Acceptance(15, (rate,)), StepTimes({n: cost * n for n in sizes}), flat, 15)
    best = max(found, key=lambda plan: plan.speed)
    assert best.size == k and best.speed == pytest.approx(speed_up, abs=5e-3)
    assert best.loss == pytest.approx(k * cost)


def test_a_plan_is_judged_in_the_narrowest_window_that_holds_it() -> None:
    verify = StepTimes({1: 1.0, 3: 1.2, 5: 2.0})
    found = plans(Acceptance(8, (1.0,)), None, verify, 8)
    assert [plan.size for plan in found] == [1, 2, 3, 4]
    assert [plan.loss for plan in found] == pytest.approx([0.2, 0.2, 1.0, 1.0])
    assert [plan.size for plan in plans(Acceptance(2, (1.0,)), None, verify, 1)] == [1]


def test_rates_are_learned_by_position_and_carry_on_to_lengths_not_drafted() -> None:
    chance, acceptance = np.random.default_rng(0), Acceptance(4)
    for _ in range(400):
        agreed = int(np.cumprod(chance.random(2) < (0.9, 0.3)).sum())
        acceptance.observe(2, range(1, agreed + 1))
    one, two, three, four = acceptance.expected()
    assert one == pytest.approx(0.9, abs=0.12)
    assert (two - one) / one == pytest.approx(0.3, abs=0.15)
    assert three - two == pytest.approx(0.5 * (two - one)) and four - three == pytest.approx(
        0.5 * (three - two)
    )


def test_old_rounds_fade() -> None:
    acceptance = Acceptance(1)
    for _ in range(100):
        acceptance.observe(1, [1])
    for _ in range(24):
        acceptance.observe(1, [])
    assert acceptance.expected()[0] < 0.4
    acceptance.begin_text()
    assert acceptance.expected()[0] == pytest.approx((0.37 + 0.5) / 2, abs=0.03)


def test_what_one_size_of_a_tree_reached_is_expected_of_the_others() -> None:
    acceptance = TreeAcceptance([4, 15], [1.0, 1.6])
    assert acceptance.expected() == [1.0, 1.6]
    for path in ([1, 5, 9], [2, 6], [3, 4, 12]) * 20:
        acceptance.observe(15, path)
    four, fifteen = acceptance.expected()
    assert fifteen == pytest.approx(8 / 3, abs=0.15) and four == pytest.approx(fifteen / 1.6)
    for _ in range(24):
        acceptance.observe(3, [])
    assert acceptance.expected()[0] < 0.75 * four
    acceptance.begin_text()
    acceptance.observe(40, [])  # larger than any size: not of this tree
    assert acceptance.expected()[0] == pytest.approx((1 + 0.36 * four) / 2, abs=0.1)


def test_times_of_another_machine_carry_over_to_widths_not_measured() -> None:
    times = StepTimes({1: 1.0, 5: 1.2, 9: 1.6})
    times.observe(1, 3.0)
    assert times[5] == pytest.approx(3.6) and times[9] == pytest.approx(4.8)
    for _ in range(20):
        times.observe(5, 6.0)
    assert times[5] == pytest.approx(6.0, rel=0.1) and times[1] == pytest.approx(3.0, rel=0.2)
    assert (times.count(1), times.count(5), times.count(9)) == (1, 20, 0)


def test_times_that_follow_others_take_their_ratio_until_measured() -> None:
    verify, draft = StepTimes({1: 1.0, 5: 1.2}), StepTimes({1: 0.1, 2: 0.2})
    draft.follow(verify)
    assert draft[2] == pytest.approx(0.2)
    verify.observe(1, 1e-3)
    assert (draft[1], draft[2]) == pytest.approx((1e-4, 2e-4))
    draft.observe(1, 5e-4)  # its own ratio from here on
    assert (draft[1], draft[2]) == pytest.approx((5e-4, 1e-3))


@pytest.mark.parametrize("factor", [1e-3, 1e3])
def test_times_scale_with_the_machine(factor: float) -> None:
    here, there = (StepTimes({1: 1.0, 3: 1.1, 5: 1.2}) for _ in range(2))
    for key, seconds in [(1, 3.0), (1, 1.0), (3, 3.3), (1, 1.1), (5, 0.9), (3, 1.1)]:
        here.observe(key, seconds)
        there.observe(key, factor * seconds)
        assert [there[k] / factor for k in (1, 3, 5)] == pytest.approx([here[k] for k in (1, 3, 5)])


def test_one_disturbed_time_is_neither_believed_nor_kept() -> None:
    times = StepTimes({1: 1.0, 5: 1.2})
    for _ in range(10):
        times.observe(1, 1.0)
    times.observe(5, 4.0)
    assert times[5] < 1.5
    first = times[5]
    for _ in range(200):
        times.observe(1, 1.0)
    assert times[5] < first and times[5] == pytest.approx(1.2, rel=0.1)
    disturbed = StepTimes({1: 1.0, 5: 1.2})
    for seconds in (5.0, 1.0, 1.0):
        disturbed.observe(1, seconds)
    assert disturbed[1] == pytest.approx(1.0) and disturbed[5] == pytest.approx(1.2)


def test_losses_are_bounded_and_gains_are_banked_up_to_a_limit() -> None:
    credit, plain, lost, seconds = Credit(), 0.02, 0.0, 0.0
    for _ in range(2000):
        if credit.allows(0.015, plain):
            credit.book(1, 0.035, plain)
            lost, took = lost + 0.015, 0.035
        else:
            took = 0.02
        credit.earn(took, plain)
        seconds += took
        assert lost <= Credit.START * plain + Credit.SHARE * seconds + 1e-9
    assert lost > 0.9 * Credit.SHARE * seconds
    for _ in range(100):
        credit.book(4, 0.03, plain)
    assert credit.allows(Credit.MOST * plain, plain) and not credit.allows(1.01 * Credit.MOST * plain, plain)
    credit.begin_text()
    assert not credit.allows(1.01 * Credit.START * plain, plain)


def test_rates_before_anything_is_known_may_differ_by_position() -> None:
    acceptance = Acceptance(4, (0.5, 0.8))
    first, second, third, fourth = np.diff([0.0, *acceptance.expected()])
    assert (first, second, third, fourth) == pytest.approx((0.5, 0.4, 0.32, 0.256))
    for _ in range(200):
        acceptance.observe(4, [])
    acceptance.begin_text()  # half of what was learned, half of each position's own prior
    first, second, *_ = np.diff([0.0, *acceptance.expected()])
    assert (first, second / first) == pytest.approx((0.25, 0.8), abs=0.01)
