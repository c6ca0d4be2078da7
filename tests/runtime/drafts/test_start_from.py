"""A session that starts from another's tokens: caches and answers are those of a session that computed them."""

import numpy as np
import pytest

from specruntime.drafts import DraftSpec, ModelDraft, NgramDraft, NoneDraft
from specruntime.drafts.adaptive import AdaptiveDraft, Arm
from specruntime.drafts.lengths import Acceptance, StepTimes
from specruntime.drafts.model import ModelProposer
from specruntime.errors import EngineFailed, InvalidArgument, SessionBusy, SessionPoisoned
from specruntime.sampling.params import SamplingParams
from specruntime.session import Session
from tests.runtime.drafts.test_sessions import KINDS, PARAMS, PROMPT, Trial
from tests.runtime.scripted_bundle import scripted_bundle
from tests.runtime.scripted_engine import (
    Bench,
    Language,
    ScriptedContext,
    clean_rows,
    draft_spec,
    reference_decode,
)
from tests.scripted_clock import ScriptedClock

MORE = [61, 5, 9]
COUNT = 60
DRAFTS: dict[str, DraftSpec] = {
    "none": NoneDraft(),
    "ngram": NgramDraft(k=4, max_n=3, min_n=1),
    "model": ModelDraft(k=4, graph=draft_spec(capacity=256)),
}


def answered(session: Session, params: SamplingParams) -> None:
    """A conversation with an answer, of which others may take a part."""
    session.append(PROMPT)
    session.begin(params)
    while session.length < len(PROMPT) + 30:
        session.round()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", PARAMS)
def test_every_kind_of_draft_goes_on_as_if_it_had_seen_the_tokens(kind: str, name: str) -> None:
    """From within the prompt, from its end, from within the answer, from all there is; caches equal a clean run's."""
    first = Trial(kind, drift=3.0)
    answered(first.session, PARAMS[name])
    held = first.session.tokens.tolist()
    second = Trial(kind, drift=3.0)
    for length in (1, 4, len(PROMPT), len(PROMPT) + 7, len(held)):
        second.session.start_from(first.session, length)
        assert second.session.tokens.tolist() == held[:length]
        assert second.session.cache_length == length - 1
        if length > 1:
            second.check_caches()
        second.session.append(MORE)
        second.session.begin(PARAMS[name])
        expected = reference_decode(second.language, held[:length] + MORE, COUNT, PARAMS[name])
        assert second.decode(COUNT) == expected
    assert first.session.tokens.tolist() == held
    first.check_caches()


@pytest.mark.parametrize("kind", ["chain", "tree", "dynamic"])
def test_the_pairs_of_an_eagle_draft_are_copied_and_not_fed_again(kind: str) -> None:
    first, second = Trial(kind), Trial(kind)
    answered(first.session, PARAMS["greedy"])
    second.session.start_from(first.session, 20)
    assert second.session._draft.cache_length == 19  # type: ignore[attr-defined]
    assert second.pairs is not None and not second.pairs.runs


@pytest.mark.parametrize("kind", DRAFTS)
def test_drafts_of_other_kinds_do_too(kind: str) -> None:
    first, second = (
        Bench(DRAFTS[kind], draft_language=Language(drift=2.0), language=Language(habit=3.0))
        for _ in range(2)
    )
    answered(first.session, PARAMS["sampled"])
    for length in (1, 5, 20):
        second.session.start_from(first.session, length)
        if second.draft is not None and length == 20:
            tokens = second.session.tokens.tolist()
            count = second.session._draft.cache_length  # type: ignore[attr-defined]
            assert count == length and np.array_equal(second.draft.rows(count), clean_rows(tokens))
        before = second.session.tokens.tolist() + MORE
        runs = len(second.target.runs)
        found = second.decode(MORE, 20, PARAMS["sampled"])
        assert found == reference_decode(Language(habit=3.0), before, 20, PARAMS["sampled"])
        prefills = [name for name in second.target.runs[runs:] if name == "prefill"]
        assert not prefills, "what was taken over is not fed again"


@pytest.mark.parametrize("step", [2.0**-20, 2.0**-7, 2.0**4], ids=["fast", "usual", "slow"])
def test_a_draft_of_dynamic_length_hands_over_all_its_arms(step: float, ticking: ScriptedClock) -> None:
    """The draft model's rows are copied, and the wrapper knows how much its arm has read; on machines of any speed."""
    ticking.tick = step / 1024

    def bench() -> tuple[Bench, Arm]:
        context = ScriptedContext(draft_spec(capacity=256), Language())
        drafting = StepTimes({size: size * step / 16 for size in range(1, 5)})
        arm = Arm(ModelProposer(context, k=4), Acceptance(4), drafting)
        draft = AdaptiveDraft([arm], StepTimes({1: step, 5: 1.25 * step}))
        made = Bench(proposer=draft)
        made.target.step_seconds, context.step_seconds = step, step / 16
        return made, arm

    (first, read), (second, arm) = bench(), bench()
    answered(first.session, PARAMS["greedy"])
    second.session.start_from(first.session, 20)
    assert arm.read == arm.draft.cache_length == min(read.read, 20) > 0  # type: ignore[attr-defined]
    before = second.session.tokens.tolist() + MORE
    assert second.decode(MORE, 40) == reference_decode(Language(), before, 40, PARAMS["greedy"])


def test_rows_that_the_source_has_not_computed_are_fed() -> None:
    first, second = Bench(), Bench()
    first.session.append(PROMPT)
    second.session.start_from(first.session, len(PROMPT))
    assert (second.session.length, second.session.cache_length) == (len(PROMPT), 0)
    second.session.begin(SamplingParams())
    for _ in range(20):
        second.session.round()
    assert second.session.tokens[len(PROMPT) :].tolist() == reference_decode(
        Language(), PROMPT, 20, SamplingParams()
    )


def test_what_was_there_before_is_forgotten_and_the_answer_has_ended() -> None:
    first, second = Bench(DRAFTS["ngram"]), Bench(DRAFTS["ngram"])
    answered(first.session, PARAMS["greedy"])
    second.decode([7] * 20, 10)
    second.session.start_from(first.session, 0)
    assert second.session.length == second.session.cache_length == 0
    assert second.decode(PROMPT, 10) == reference_decode(Language(), PROMPT, 10, SamplingParams())


@pytest.mark.parametrize("length", [-1, 37, 1.5])
def test_more_than_the_other_holds_is_refused(length: int) -> None:
    first, second = Bench(), Bench()
    answered(first.session, PARAMS["greedy"])
    second.session.append(MORE)
    with pytest.raises(InvalidArgument):
        second.session.start_from(first.session, length)
    assert second.session.tokens.tolist() == MORE and not second.session.poisoned


def test_a_session_of_another_bundle_or_opened_in_another_way_is_refused() -> None:
    """Before anything is changed: drafts that did not observe the target's windows could not go on."""
    (bundle, _), (other, _) = (
        scripted_bundle(draft=ModelDraft(k=4, graph=draft_spec(batch=2)), batch=2, eos=eos)
        for eos in ((), (96,))
    )
    with bundle, other, bundle.new_batch(2) as batch:
        session = bundle.new_session()
        session.append(MORE)
        for source in (bundle.new_session(speculate=False), batch.sessions[0], other.new_session()):
            source.append(PROMPT)
            with pytest.raises(InvalidArgument, match="opened in another way"):
                session.start_from(source, 3)
            assert session.tokens.tolist() == MORE and not session.poisoned
        with bundle.new_batch(1) as beside:
            beside.sessions[0].start_from(batch.sessions[0], 3)
            assert beside.sessions[0].tokens.tolist() == PROMPT[:3]


def test_a_source_that_is_at_work_or_undefined_is_refused() -> None:
    first, second = Bench(), Bench()
    answered(first.session, PARAMS["greedy"])
    with first.session._guard.exclusive, pytest.raises(SessionBusy):
        second.session.start_from(first.session, 3)
    first.target.failing = lambda: True
    with pytest.raises(EngineFailed):
        first.session.round()
    with pytest.raises(SessionPoisoned):
        second.session.start_from(first.session, 3)
    assert not second.session.poisoned


def test_a_copy_that_fails_poisons_the_session_and_leaves_the_source() -> None:
    first, second = Bench(), Bench()
    answered(first.session, PARAMS["greedy"])
    second.target.failing = lambda: True
    with pytest.raises(EngineFailed):
        second.session.start_from(first.session, 20)
    assert second.session.poisoned and not first.session.poisoned
    second.target.failing = lambda: False
    second.session.reset()
    second.session.start_from(first.session, 20)
    assert np.array_equal(second.target.rows(19), clean_rows(first.session.tokens[:19].tolist()))
