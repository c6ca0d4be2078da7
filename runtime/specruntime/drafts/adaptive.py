"""Dynamic length: each round drafts as much as pays, or nothing, by recent acceptance and measured times.

Wraps the drafts of a bundle (an *arm* each) and hands out the proposal with the most expected tokens per second. What
a draft costs when it turns out wrong is bounded by a credit (`lengths.Credit`); a draft that does not pay is
tried again by probes of its smallest size. One that proposes at no cost (prompt lookup) always proposes and is judged
by what was committed, so disabling it only skips verification.

Under `match` and greedy decoding the tokens do not depend on any of this. Under the rejection rule they follow the
noise of each draft, and lengths that follow the clock would make a seed give other tokens each time, so there every
round takes the first proposal at its full length.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log2

import numpy as np
from numpy.typing import NDArray

from specruntime.drafts.draft import NOTHING, Draft, Proposal, Room, Verdict
from specruntime.drafts.lengths import Acceptance, Credit, Plan, StepTimes, TreeAcceptance, plans
from specruntime.manifest.schema import AdaptiveSpec, GraphSpec, Manifest
from specruntime.sampling.sampler import Sampler
from specruntime.statistics import EngineCounters

_MARGIN = 1.02  # how much faster than plain decoding a round must promise to be: estimates are noisy
_FIRST_PAUSE, _LONGEST_PAUSE = 4, 64  # plain rounds between probes; doubled after each that failed
_PLAIN_FIRST = 2  # plain rounds of a session before it speculates: all depends on their time
_PLAIN_EVERY = 128  # rounds; a plain one in between keeps that time known
_AWAITED = 3  # right tokens of a free proposal that are enough to judge it
_SPREAD = 8  # rounds over which reading up on what was missed is expected to pay


@dataclass(slots=True)
class Arm:
    """One draft with what is known of it."""

    draft: Draft
    acceptance: Acceptance | TreeAcceptance
    times: StepTimes | None  # seconds of drafting by size; None: next to nothing
    catch_up: float = 0.0  # seconds for each token it has not read
    read: int = 0  # tokens it had read when it last proposed
    behind: int = 0  # tokens it read for its last proposal
    pause: int = 0  # rounds until the next probe
    backoff: int = _FIRST_PAUSE
    awaited: tuple[int, NDArray[np.int64]] | None = None  # a free proposal and where it began, to be compared

    def limit(self, room: Room) -> int:
        return room.nodes if isinstance(self.acceptance, TreeAcceptance) else min(room.depth, room.nodes)

    def begin_text(self) -> None:
        self.acceptance.begin_text()
        self.pause, self.backoff, self.awaited = 0, _FIRST_PAUSE, None

    def note_success(self, accepted: bool, probe: bool) -> None:
        """When to probe next, should the draft not pay."""
        if accepted:
            self.pause, self.backoff = 0, _FIRST_PAUSE
            return
        self.pause = self.backoff
        if probe:
            self.backoff = min(2 * self.backoff, _LONGEST_PAUSE)

    def learn_time(self, size: int, seconds: float) -> float:
        """Book the time of drafting; what is expected of it now, without reading up.

        A draft that was silent for long first reads what it missed, which is a figure of its own.
        """
        assert self.times is not None
        if self.behind <= self.acceptance.sizes[-1] + 1:
            self.times.observe(size, seconds)
        else:
            self.catch_up = max(seconds - self.times[size], 0.0) / self.behind
        return self.times[size]

    def settle(self, tokens: NDArray[np.int64]) -> None:
        """Judge the awaited proposal as far as committed tokens decide it, a few of them at least."""
        if self.awaited is None:
            return
        start, ids = self.awaited
        came = tokens[start : start + len(ids)]
        agreed = int(np.cumprod(came == ids[: len(came)]).sum())
        if agreed < len(came) or agreed == len(ids) or agreed >= _AWAITED:
            self.acceptance.observe(len(came), range(1, agreed + 1))
            self.awaited = None


@dataclass(frozen=True, slots=True)
class _Offer:
    """What one arm could do this round."""

    arm: Arm
    plan: Plan
    proposal: Proposal | None = None  # drafted already, by a free arm
    cold: float = 0.0  # seconds of reading up on what the arm missed
    probe: bool = False

    @property
    def loss(self) -> float:
        return self.plan.loss + self.cold

    @property
    def speed(self) -> float:
        """Tokens per second, reading up spread over the rounds it serves."""
        return 1 / (1 / self.plan.speed + self.cold / _SPREAD)


class AdaptiveDraft(Draft):
    """A `Draft` that chooses among its arms and their sizes. Equal tokens, verdicts and times give equal choices."""

    def __init__(self, arms: Sequence[Arm], verify: StepTimes) -> None:
        """`verify`: seconds of a target window by width, 1 among them. Owns the arms' drafts."""
        assert arms and 1 in verify, "an adaptive draft has a draft, and knows the time of a plain step"
        for arm in arms:
            if arm.times is not None:
                arm.times.follow(verify)
        self._arms, self._verify = tuple(arms), verify
        super().__init__(max(arm.draft.k for arm in arms))
        self.drafts_behind = all(arm.draft.drafts_behind for arm in arms)
        self.credit = Credit()
        self._asked: _Offer | None = None
        self._proposer: Draft | None = None  # whose proposal is judged
        self._begun = False  # whether the rounds of this text have begun
        self._prompt = 0  # tokens of the prompt
        self._rounds = self._plain_round = 0  # rounds so far, and the last of them that was plain

    @property
    def counters(self) -> EngineCounters:
        return self._arms[0].draft.counters

    @counters.setter
    def counters(self, counters: EngineCounters) -> None:
        for arm in self._arms:
            arm.draft.counters = counters

    def propose(self, tokens: NDArray[np.int64], room: Room, sampler: Sampler) -> Proposal:
        self._asked = self._proposer = None
        if sampler.params.draws_drafts:
            return self._first_found(tokens, room, sampler)
        if not self._begun:
            self._begin_text(len(tokens))
        offers = [
            offer for arm in self._arms if (offer := self._offer(arm, tokens, room, sampler)) is not None
        ]
        chosen = self._choose(offers)
        if chosen is None:
            self._plain_round = self._rounds
            return NOTHING
        proposal = self._draft(chosen, tokens, room, sampler)
        self._asked, self._proposer = chosen, chosen.arm.draft
        return proposal

    def observe(self, verdict: Verdict) -> None:
        for arm in self._arms:
            own = verdict.proposal is None or arm.draft is self._proposer
            arm.draft.observe(verdict if own else replace(verdict, proposal=NOTHING, path=()))
        if verdict.proposal is None:
            self._begun, self._prompt = False, verdict.start + verdict.kept
        elif self._asked is None:
            if verdict.width == 1:
                self._verify.observe(1, verdict.verify_seconds)
        else:
            self._learn(self._asked, verdict, len(verdict.proposal.ids))
        # In plain steps as known now: before the first one their time is the build host's.
        self.credit.earn(verdict.draft_seconds + verdict.verify_seconds, self._verify[1])
        self._asked = self._proposer = None

    def start_from(self, source: Draft, length: int) -> None:
        assert isinstance(source, AdaptiveDraft), "the drafts of a bundle are of one kind"
        for arm, other in zip(self._arms, source._arms, strict=True):
            arm.draft.start_from(other.draft, length)
            arm.read = min(other.read, length)

    def rewind(self, length: int) -> None:
        for arm in self._arms:
            arm.draft.rewind(length)
            arm.read, arm.awaited = min(arm.read, length), None
        self._begun = False

    def reset(self) -> None:
        for arm in self._arms:
            arm.draft.reset()
            arm.read, arm.awaited = 0, None
        self._begun = False

    def close(self) -> None:
        for arm in self._arms:
            arm.draft.close()

    def _begin_text(self, length: int) -> None:
        self._begun, self._prompt = True, length
        self.credit.begin_text()
        for arm in self._arms:
            arm.begin_text()

    def _first_found(self, tokens: NDArray[np.int64], room: Room, sampler: Sampler) -> Proposal:
        for arm in self._arms:
            proposal = arm.draft.propose(tokens, room, sampler)
            if len(proposal.ids):
                self._proposer = arm.draft
                return proposal
        return NOTHING

    def _offer(self, arm: Arm, tokens: NDArray[np.int64], room: Room, sampler: Sampler) -> _Offer | None:
        """Return the arm's fastest size that pays and can be paid, else its probe if one is due; None: nothing."""
        arm.settle(tokens)
        proposal, limit, cold = None, arm.limit(room), 0.0
        if arm.times is None:
            proposal = arm.draft.propose(tokens, room, sampler)
            limit = len(proposal.ids)
            if limit and arm.awaited is None:
                arm.awaited = (len(tokens), proposal.ids.copy())
        else:
            cold = arm.catch_up * max(0, len(tokens) - max(arm.read, self._prompt))
        plain = self._verify[1]
        options = [
            offer
            for plan in plans(arm.acceptance, arm.times, self._verify, limit)
            if self.credit.allows((offer := _Offer(arm, plan, proposal, cold)).loss, plain)
        ]
        best = max(
            (o for o in options if o.speed * plain > _MARGIN), key=lambda offer: offer.speed, default=None
        )
        if best is not None or arm.times is None:
            return best
        arm.pause -= 1
        return replace(options[0], probe=True) if options and arm.pause < 0 else None

    def _choose(self, offers: Sequence[_Offer]) -> _Offer | None:
        """Return the fastest of those that pay; else a probe. None is a plain round, and one is due now and then."""
        self._rounds += 1
        if self._rounds <= _PLAIN_FIRST or self._rounds - self._plain_round > _PLAIN_EVERY:
            return None
        paying = [offer for offer in offers if not offer.probe]
        return max(paying, key=lambda offer: offer.speed) if paying else next(iter(offers), None)

    def _draft(self, offer: _Offer, tokens: NDArray[np.int64], room: Room, sampler: Sampler) -> Proposal:
        size = offer.plan.size
        if offer.proposal is not None:
            return replace(offer.proposal, ids=offer.proposal.ids[:size])
        assert offer.arm.times is not None
        behind = len(tokens) - offer.arm.read
        proposal = offer.arm.draft.propose(tokens, Room(min(room.depth, size), size), sampler)
        offer.arm.behind, offer.arm.read = behind, len(tokens)
        return proposal

    def _learn(self, offer: _Offer, verdict: Verdict, proposed: int) -> None:
        """Update acceptance, times and credit from the round that `offer` made.

        Charged are expected times, not the measured ones: a disturbance would have met a plain step as well.
        """
        arm, cost = offer.arm, 0.0
        if arm.times is not None:
            if proposed:
                arm.acceptance.observe(proposed, verdict.path)
            arm.note_success(bool(verdict.path), offer.probe)
            cost = arm.learn_time(offer.plan.size, verdict.draft_seconds) + offer.cold
        if verdict.width in self._verify:
            self._verify.observe(verdict.width, verdict.verify_seconds)
            cost += self._verify[verdict.width]
        else:
            cost += verdict.verify_seconds
        self.credit.book(len(verdict.path) + 1, cost, self._verify[1])


# Rates of the first positions and of all further ones before anything is known. What was copied goes on to be copied.
TRAINED_PRIOR, LOOKUP_PRIOR = (0.6,), (0.5, 0.7, 0.85)
LOOKUP_MEMORY = 8.0  # a text that begins or ends to repeat itself does so at once
# Accepted drafts of a tree of n nodes are about this times log2(1 + n) where trained drafts do middling well.
TREE_PRIOR = 0.45
# Where the build host measured nothing: a window of width w in plain steps, and drafting one token.
GUESSED_ROW, GUESSED_DRAFT = 1 / 40, 0.1
GUESSED_PLAIN = 0.02  # seconds of a plain step; the first one measured replaces it


def adaptive_draft(draft: Draft, manifest: Manifest) -> AdaptiveDraft:
    """Wrap the draft of an adaptive bundle, with prompt lookup in addition where the manifest says so."""
    spec = manifest.adaptive
    assert spec is not None, "the manifest says that the length is dynamic"
    verify = _verify_seconds(spec, manifest.target)
    arms = [_arm(draft, spec, manifest, sorted(verify), verify[1])]
    if spec.lookup is not None:
        arms.insert(0, _free(spec.lookup.proposer(None, None, manifest.target.vocab_size)))
    return AdaptiveDraft(arms, StepTimes(verify))


def _verify_seconds(spec: AdaptiveSpec, target: GraphSpec) -> dict[int, float]:
    """Seconds of the windows that judge drafts, and of a plain step, by width."""
    profiles = [p for p in target.profiles if p.rows == p.width and p.computes("top_ids")]
    known = {p.width: 1e-3 * spec.step_ms[p.name] for p in profiles if p.name in spec.step_ms}
    plain = known.get(1, GUESSED_PLAIN)
    guessed = {p.width: plain * (1 + GUESSED_ROW * (p.width - 1)) for p in profiles}
    return {1: plain} | guessed | known


def _arm(draft: Draft, spec: AdaptiveSpec, manifest: Manifest, widths: Sequence[int], plain: float) -> Arm:
    kind = manifest.draft
    if kind.free:
        return _free(draft)
    assert kind.nodes, "manifests with a dynamic length and no draft are refused"
    if not kind.grows_trees:
        sizes: Sequence[int] = range(1, kind.k + 1)
        acceptance: Acceptance | TreeAcceptance = Acceptance(kind.k, TRAINED_PRIOR)
    else:
        sizes = sorted({min(width - 1, kind.nodes) for width in widths if width > 1})
        acceptance = TreeAcceptance(sizes, [TREE_PRIOR * log2(1 + size) for size in sizes])
    times = {name: 1e-3 * ms for name, ms in spec.draft_ms.items()}
    step = min(times.values(), default=GUESSED_DRAFT * plain)
    return Arm(draft, acceptance, StepTimes({size: kind.first_seconds(size, step, times) for size in sizes}))


def _free(draft: Draft) -> Arm:
    """Return the arm of a draft that proposes at no cost."""
    return Arm(draft, Acceptance(draft.k, LOOKUP_PRIOR, memory=LOOKUP_MEMORY), None)
