"""Dynamic length on real graphs: whatever it chooses, tokens are those of plain decoding and drafts are never stale.

Times are given, so that speculation turns itself off and on again while an answer is decoded.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from specruntime.bundle import LoadedBundle
from specruntime.drafts import NOTHING, Draft, NgramDraft, Proposal, Room, Verdict
from specruntime.drafts.adaptive import adaptive_draft
from specruntime.drafts.wrappers import ForwardingDraft
from specruntime.manifest.schema import AdaptiveSpec
from specruntime.sampling.params import SamplingParams
from specruntime.sampling.sampler import Sampler
from specruntime.session import Session
from tests.e2e.conftest import DRAFT_KINDS, Opened

ANSWER = 200
PROMPT = [int(token) for token in np.random.default_rng(3).integers(3, 250, 23)]
GREEDY = SamplingParams(ignore_eos=True)
OPTIONS = {"greedy": GREEDY, "sampled": SamplingParams(temperature=0.8, top_p=0.9, seed=4, ignore_eos=True)}
LOOKUP = NgramDraft(k=4, max_n=3, min_n=1)


class Recorded(ForwardingDraft):
    """Another draft whose proposals are kept by the number of tokens they follow."""

    def __init__(self, draft: Draft) -> None:
        super().__init__(draft)
        self.proposals: dict[int, Proposal] = {}

    def propose(self, tokens: NDArray[np.int64], room: Room, sampler: Sampler) -> Proposal:
        found = super().propose(tokens, room, sampler)
        if len(found.ids):
            self.proposals[len(tokens)] = found
        return found


class Retimed(Recorded):
    """Tells the draft times under which a wide window is cheap for a while, then dear, and so on."""

    rounds = 0

    def observe(self, verdict: Verdict) -> None:
        if verdict.proposal is not None:
            self.rounds += 1
        dear = (self.rounds // 30) % 2
        seconds = 1.0 if verdict.width == 1 else (2.5 if dear else 0.9)
        super().observe(replace(verdict, draft_seconds=0.0, verify_seconds=seconds))


class Unused(Recorded):
    """Asks the draft and throws away what it says."""

    def propose(self, tokens: NDArray[np.int64], room: Room, sampler: Sampler) -> Proposal:
        super().propose(tokens, room, sampler)
        return NOTHING


def dynamic(bundle: LoadedBundle, *, lookup: NgramDraft | None) -> tuple[Session, Recorded]:
    """A session of dynamic length over the bundle's draft, and what that draft proposed."""
    spec = AdaptiveSpec(step_ms={}, draft_ms={}, lookup=lookup)
    manifest = bundle.manifest.model_copy(update={"adaptive": spec})
    inner: list[Recorded] = []

    def wrap(draft: Draft) -> Draft:
        inner.append(Recorded(draft))
        return Retimed(adaptive_draft(inner[0], manifest))

    return bundle.new_session(dynamic=False, adapt=wrap), inner[0]


def decode(session: Session, params: SamplingParams) -> tuple[list[int], list[int]]:
    """The answer's tokens, and how many were proposed in each round."""
    session.reset()
    session.append(PROMPT)
    session.begin(params)
    proposed = []
    while session.length < len(PROMPT) + ANSWER:
        proposed.append(session.round().proposed)
    return [int(token) for token in session.tokens[len(PROMPT) : len(PROMPT) + ANSWER]], proposed


@pytest.fixture(params=DRAFT_KINDS)
def bundle(request: pytest.FixtureRequest, opened: Opened) -> LoadedBundle:
    return opened(request.param)


@pytest.fixture(scope="module")
def plain(opened: Opened) -> Callable[[str], list[int]]:
    """Answers without a draft; every recipe here has the same target."""
    session = opened(DRAFT_KINDS[0]).new_session(speculate=False)
    return lambda name: decode(session, OPTIONS[name])[0]


@pytest.mark.parametrize("lookup", [None, LOOKUP])
@pytest.mark.parametrize("name", OPTIONS)
def test_no_choice_of_lengths_changes_a_token(
    bundle: LoadedBundle, plain: Callable[[str], list[int]], name: str, lookup: NgramDraft | None
) -> None:
    session, _ = dynamic(bundle, lookup=lookup)
    answer, proposed = decode(session, OPTIONS[name])
    assert answer == plain(name)
    assert proposed.count(0) > 5 and sum(count > 0 for count in proposed) > 5, "off and on"


def test_after_a_silence_a_draft_says_what_it_would_have_said_without(bundle: LoadedBundle) -> None:
    """Nothing of what was committed while it was off is missing from its cache or its features."""
    unused: list[Unused] = []

    def wrap(draft: Draft) -> Draft:
        unused.append(Unused(draft))
        return unused[0]

    always = bundle.new_session(dynamic=False, adapt=wrap)
    answer, _ = decode(always, GREEDY)
    session, asked = dynamic(bundle, lookup=LOOKUP)
    assert decode(session, GREEDY)[0] == answer
    places = sorted(asked.proposals)
    assert max(np.diff(places)) > 10, "it was silent for long"
    compared = 0
    for place in places:
        found, expected = asked.proposals[place], unused[0].proposals.get(place)
        if expected is None or len(expected.ids) < len(found.ids):
            continue
        whole = len(found.ids) == len(expected.ids)
        if whole or found.parents is None:
            assert found.ids.tolist() == expected.ids[: len(found.ids)].tolist(), place
            compared += 1
    assert compared > 10


def test_under_the_rejection_rule_a_seed_gives_one_answer_whatever_the_clock_says(opened: Opened) -> None:
    params = SamplingParams(temperature=0.9, seed=2, accept="rejection", ignore_eos=True)
    bundle = opened("eagle3")
    session, _ = dynamic(bundle, lookup=None)
    fixed = bundle.new_session(dynamic=False)
    assert decode(session, params) == decode(fixed, params)
