"""Drafts go off where they cost more than they bring, and on again when that changes; a fixed limit is kept."""

import numpy as np
import pytest

from specruntime import InvalidArgument, SamplingParams
from specruntime.batches.speculation import Speculation
from specruntime.serving import BatchStepper, Work, stepper_for
from tests.runtime.scripted_bundle import scripted_bundle
from tests.runtime.scripted_engine import Language


def speed(speculation: Speculation, rows: int, steps: int, tokens: float, seconds: float) -> float:
    """Tokens per second of steps that take 1 s plainly, and otherwise commit `tokens` a row in `seconds`."""
    total = time = 0.0
    for _ in range(steps):
        drafting = speculation.allows(rows)
        committed, took = (round(rows * tokens), seconds) if drafting else (rows, 1.0)
        speculation.learn(rows, drafting, committed, took)
        total, time = total + committed, time + took
    return total / time


@pytest.mark.parametrize("rows", [2, 4, 8])
@pytest.mark.parametrize(("tokens", "seconds"), [(1.0, 2.0), (1.5, 3.0), (2.0, 1.2), (3.0, 1.5), (1.5, 1.5)])
def test_the_better_way_is_nearly_reached(rows: int, tokens: float, seconds: float) -> None:
    better = max(rows * 1.0, round(rows * tokens) / seconds)
    assert speed(Speculation(), rows, 400, tokens, seconds) >= 0.97 * better


def test_a_change_is_noticed() -> None:
    speculation = Speculation()
    speed(speculation, 4, 200, 1.0, 2.0)
    assert speed(speculation, 4, 400, 3.0, 1.5) >= 0.8 * 4 * 3.0 / 1.5


@pytest.mark.parametrize(("tokens", "seconds"), [(1.2, 2.5), (3.0, 1.5)])
def test_rows_that_end_one_by_one_cost_no_new_trial(tokens: float, seconds: float) -> None:
    speculation = Speculation()
    speed(speculation, 8, 40, tokens, seconds)
    drafted = 0
    for rows in range(7, 1, -1):
        for _ in range(6):
            drafting = speculation.allows(rows)
            drafted += drafting
            speculation.learn(
                rows, drafting, round(rows * tokens) if drafting else rows, seconds if drafting else 1
            )
    assert drafted == (36 if tokens / seconds > 1 else 0)


def test_what_other_rows_say_is_soon_forgotten() -> None:
    speculation = Speculation()
    speed(speculation, 2, 100, 3.0, 1.5)
    assert speed(speculation, 8, 100, 1.0, 2.5) >= 0.93 * 8
    assert speed(speculation, 4, 200, 3.0, 1.5) >= 0.9 * 4 * 3.0 / 1.5


def test_one_row_decides_for_itself() -> None:
    speculation = Speculation()
    for _ in range(20):
        assert speculation.allows(1)
        speculation.learn(1, True, 1, 9.0)


def test_a_fixed_limit_is_kept() -> None:
    assert [Speculation(2).allows(rows) for rows in (1, 2, 3)] == [True, True, False]
    assert not Speculation(0).allows(1)


@pytest.mark.parametrize(("limit", "drafts"), [(0, False), (4, True)])
def test_the_stepper_asks(limit: int, drafts: bool) -> None:
    bundle, _ = scripted_bundle(language=Language(habit=12.0), batch=4)
    stepper = stepper_for(bundle, 4, speculate_up_to=limit)
    assert isinstance(stepper, BatchStepper)
    for slot in range(3):
        stepper.admit(slot, stepper.check(Work(np.array([3, 5, 3, 5]), SamplingParams(max_tokens=40))))
    proposed = 0
    for _ in range(25):
        proposed += sum(turn.round.proposed for turn in stepper.step() if turn.round is not None)
    assert (proposed > 0) is drafts
    stepper.close()
    bundle.close()


def test_a_limit_without_batches_is_refused() -> None:
    bundle, _ = scripted_bundle()
    with pytest.raises(InvalidArgument, match="nothing is batched here"):
        stepper_for(bundle, 4, speculate_up_to=2)
    bundle.close()
    bundle, _ = scripted_bundle(batch=2)
    with pytest.raises(InvalidArgument, match="speculate_up_to is -1"):
        stepper_for(bundle, 2, speculate_up_to=-1)
    bundle.close()
