"""Dynamic length: near the best fixed length where drafting pays, near plain decoding where it does not."""

from collections.abc import Callable
from dataclasses import replace
from statistics import fmean

import numpy as np
import pytest

from specruntime.drafts import Room, Verdict
from specruntime.drafts.adaptive import AdaptiveDraft
from tests.runtime.drafts.length_worlds import (
    DRAWN,
    GREEDY,
    Machine,
    ScriptedDraft,
    adaptive,
    agreement,
    decode,
    fixed_speed_up,
    lookup,
    speed_up,
    trained,
)

CHEAP = Machine({1: 25.4, 3: 27.0, 5: 28.5, 12: 34.6})  # SmolLM2-135M on two cores
DEAR = Machine({1: 20.0, 5: 34.0})
LENGTH, SEEDS = 128, range(6)
WORLDS: dict[str, Callable[[int], float]] = {
    "hopeless": lambda t: 0.0,
    "poor": lambda t: 0.15,
    "middling": lambda t: 0.4,
    "turns bad": lambda t: 0.8 if t < 64 else 0.02,
    "turns good": lambda t: 0.02 if t < 64 else 0.8,
    "to and fro": lambda t: 0.9 if (t // 16) % 2 else 0.0,
}


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize(("machine", "ms"), [(CHEAP, 2.5), (DEAR, 5.0)])
def test_no_text_makes_it_much_slower_than_plain(world: str, machine: Machine, ms: float) -> None:
    for seed in SEEDS:
        agreed = agreement(WORLDS[world], LENGTH + 1, seed)
        assert speed_up(trained, machine, agreed, k=4, ms=ms, seed=seed) >= 0.97


def test_fixed_length_would_be_slower_there() -> None:
    for seed in SEEDS:
        agreed = agreement(WORLDS["poor"], LENGTH + 1, seed)
        assert fixed_speed_up(DEAR, agreed, k=4, ms=5.0, seed=seed) < 0.6


@pytest.mark.parametrize(("rate", "share"), [(0.9, 0.93), (0.75, 0.9), (0.6, 0.87)])
def test_a_good_draft_is_used_nearly_as_the_best_fixed_length_would(rate: float, share: float) -> None:
    found, best = [], []
    for seed in range(12):
        agreed = agreement(lambda t: rate, 4 * LENGTH + 1, seed)
        found.append(speed_up(trained, CHEAP, agreed, k=8, ms=2.5, seed=seed))
        best.append([fixed_speed_up(CHEAP, agreed, k=k, ms=2.5, seed=seed) for k in range(1, 9)])
    assert fmean(found) > share * max(np.mean(best, axis=0))


def test_it_beats_every_fixed_length_where_a_text_changes() -> None:
    found, best = [], []
    for seed in range(12):
        agreed = agreement(WORLDS["turns bad"], LENGTH + 1, seed)
        found.append(speed_up(trained, CHEAP, agreed, k=4, ms=2.5, seed=seed))
        best.append([fixed_speed_up(CHEAP, agreed, k=k, ms=2.5, seed=seed) for k in range(1, 5)])
    assert fmean(found) > 1.05 * max(np.mean(best, axis=0))


def test_lookup_that_finds_nonsense_is_not_verified() -> None:
    for seed in SEEDS:
        nonsense = agreement(lambda t: 0.02, LENGTH + 1, seed)
        assert speed_up(lookup, CHEAP, nonsense, k=10, ms=0.0, seed=seed) >= 0.97


def test_lookup_comes_back_when_it_is_right_at_no_cost_of_probes() -> None:
    found = []
    for seed in SEEDS:
        copied = agreement(lambda t: 0.0 if t < 64 else 0.97, LENGTH + 1, seed)
        found.append(speed_up(lookup, CHEAP, copied, k=10, ms=0.0, seed=seed))
    assert min(found) > 1.2 and fmean(found) > 1.4  # half the text, and the rest for next to nothing: below 2


def cascade(
    seed: int, *, finds: float, right: float, model: float
) -> tuple[AdaptiveDraft, list[ScriptedDraft]]:
    """A lookup that finds something at a share of positions, and a trained draft."""
    found = np.random.default_rng(900 + seed).random(LENGTH + 1) < finds
    copied = np.where(found, agreement(lambda t: right, LENGTH + 1, seed), -1)
    drafts = [
        ScriptedDraft(10, copied),
        ScriptedDraft(4, agreement(lambda t: model, LENGTH + 1, 50 + seed), 2.5),
    ]
    return adaptive(CHEAP, lookup(drafts[0]), trained(drafts[1])), drafts


@pytest.mark.parametrize(
    ("finds", "right", "model"), [(0.9, 0.95, 0.3), (0.3, 0.1, 0.75), (0.4, 0.9, 0.6), (0.3, 0.1, 0.02)]
)
def test_of_two_drafts_the_better_one_is_used_at_each_place(finds: float, right: float, model: float) -> None:
    both, alone = [], []
    for seed in range(12):
        policy, drafts = cascade(seed, finds=finds, right=right, model=model)
        both.append(LENGTH * CHEAP.plain / decode(policy, drafts, CHEAP, LENGTH, seed))
        _, (copied, trained_one) = cascade(seed, finds=finds, right=right, model=model)
        singles = [adaptive(CHEAP, lookup(copied)), adaptive(CHEAP, trained(trained_one))]
        alone.append(
            [
                LENGTH * CHEAP.plain / decode(single, [draft], CHEAP, LENGTH, seed)
                for single, draft in zip(singles, (copied, trained_one), strict=True)
            ]
        )
    assert fmean(both) > 0.95 * max(np.mean(alone, axis=0))
    assert min(both) > 0.96


def test_the_times_of_another_machine_are_unlearned() -> None:
    """Built where a window of five costs nothing more, run where it costs too much for this draft."""
    agreed = agreement(lambda t: 0.3, 4 * LENGTH + 1, 1)
    draft = ScriptedDraft(4, agreed, 5.0)
    policy = adaptive(Machine({1: 2.0, 5: 2.0}), trained(draft))
    taken = decode(policy, [draft], DEAR, 4 * LENGTH, 1)
    assert 4 * LENGTH * DEAR.plain / taken > 0.96


@pytest.mark.parametrize("factor", [1e-3, 1.0, 1e3])
def test_a_good_draft_is_used_however_much_faster_or_slower_the_machine_is(factor: float) -> None:
    """Than the build host, whose times a session begins with."""
    there = Machine({width: factor * ms for width, ms in CHEAP.verify.items()})
    found, here = [], []
    for seed in SEEDS:
        agreed = agreement(lambda t: 0.9, LENGTH + 1, seed)
        draft, same = ScriptedDraft(4, agreed, 2.5), ScriptedDraft(4, agreed, 2.5)
        policy = adaptive(CHEAP, trained(draft))
        draft.ms *= factor
        found.append(LENGTH * there.plain / decode(policy, [draft], there, LENGTH, seed))
        here.append(
            LENGTH * CHEAP.plain / decode(adaptive(CHEAP, trained(same)), [same], CHEAP, LENGTH, seed)
        )
    assert found == pytest.approx(here, rel=0.01) and fmean(found) > 2


@pytest.mark.parametrize("factor", [1e-3, 1e3])
def test_a_hopeless_draft_costs_little_however_much_faster_or_slower_the_machine_is(factor: float) -> None:
    there = Machine({width: factor * ms for width, ms in CHEAP.verify.items()})
    for seed in SEEDS:
        draft = ScriptedDraft(4, agreement(WORLDS["hopeless"], LENGTH + 1, seed), 2.5)
        policy = adaptive(CHEAP, trained(draft))
        draft.ms *= factor
        assert LENGTH * there.plain / decode(policy, [draft], there, LENGTH, seed) >= 0.97


def test_equal_times_give_equal_choices() -> None:
    def choices() -> list[int]:
        draft = ScriptedDraft(4, agreement(WORLDS["turns good"], LENGTH + 1, 3), 2.5)
        decode(adaptive(CHEAP, trained(draft)), [draft], CHEAP, LENGTH, 7)
        return draft.asked

    assert choices() == choices() and len(set(choices())) > 1


def test_under_the_rejection_rule_every_round_takes_the_full_length() -> None:
    policy, (copied, model) = cascade(1, finds=0.5, right=0.0, model=0.0)
    words = np.arange(1, LENGTH, dtype=np.int64)
    for done in range(1, 60):
        proposal = policy.propose(words[:done], Room(16, 16), DRAWN)
        assert len(proposal.ids) == (10 if copied.agreed[done] >= 0 else 4)
        policy.observe(Verdict(done - 1, None, 1, proposal, (), 5, 9.0, 9.0))
    assert set(model.asked) == {4}


def test_each_draft_is_told_of_every_window_and_judged_by_its_own_proposals() -> None:
    policy, (copied, model) = cascade(2, finds=0.5, right=0.9, model=0.9)
    decode(policy, [copied, model], CHEAP, LENGTH)
    assert [v.start for v in copied.verdicts] == [v.start for v in model.verdicts]
    assert [v.kept for v in copied.verdicts] == [v.kept for v in model.verdicts]
    judged = [
        (len(ours.proposal.ids) > 0, len(theirs.proposal.ids) > 0)
        for ours, theirs in zip(copied.verdicts, model.verdicts, strict=True)
        if ours.proposal is not None and theirs.proposal is not None
    ]
    assert {(True, False), (False, True)} <= set(judged) and (True, True) not in judged
    assert all(v.proposal is None or len(v.path) <= len(v.proposal.ids) for v in model.verdicts)


def test_a_room_is_never_passed() -> None:
    policy, (_, model) = cascade(3, finds=0.0, right=0.0, model=1.0)
    words = np.arange(1, LENGTH, dtype=np.int64)
    for done in range(1, 40):
        room = Room(depth=done % 4, nodes=3)
        proposal = policy.propose(words[:done], room, GREEDY)
        assert len(proposal.ids) <= room.depth
        path = tuple(range(1, len(proposal.ids) + 1))
        width = 5 if path else 1
        policy.observe(Verdict(done - 1, None, 1 + len(path), proposal, path, width, 0.001, 0.02))
    assert max(model.asked) == 3


def test_closing_closes_every_draft_and_tallies_are_shared() -> None:
    policy, drafts = cascade(4, finds=0.5, right=0.5, model=0.5)
    counters = replace(policy.counters)
    policy.counters = counters
    assert all(draft.counters is counters for draft in drafts) and policy.k == 10
    policy.close()
    assert all(draft.closed for draft in drafts)
