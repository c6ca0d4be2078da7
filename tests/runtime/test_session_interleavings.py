"""Any order of append, begin, round, rewind and reset leaves a session that decodes like a fresh one."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from specruntime.drafts import DraftSpec, ModelDraft, NgramDraft, NoneDraft
from specruntime.drafts.model import ModelProposer
from specruntime.sampling.params import SamplingParams
from tests.runtime.scripted_engine import (
    VOCAB,
    Bench,
    Language,
    clean_rows,
    draft_spec,
    reference_decode,
    target_spec,
)

CAPACITY = 48
DRAFTS: list[DraftSpec] = [
    NoneDraft(),
    NgramDraft(k=4, max_n=3, min_n=1),
    ModelDraft(k=3, graph=draft_spec(capacity=CAPACITY)),
    ModelDraft(k=4, graph=draft_spec(capacity=30, prefill=4)),
]
ANSWERS = [
    SamplingParams(),
    SamplingParams(temperature=0.9, seed=2),
    SamplingParams(repetition_penalty=1.3, frequency_penalty=0.5),
    SamplingParams(max_tokens=6),
]


class Interleaving(RuleBasedStateMachine):
    @initialize(draft=st.sampled_from(DRAFTS), drift=st.sampled_from([0.0, 2.0]))
    def open(self, draft: DraftSpec, drift: float) -> None:
        target = target_spec(verify=(3, 5), prefill=8, capacity=CAPACITY)
        self.bench = Bench(draft, target=target, draft_language=Language(drift=drift))
        self.session = self.bench.session
        self.proposer = self.session._draft
        self.tokens: list[int] = []  # what must be committed
        self.future: list[int] | None = None  # what the answer must say next, None outside an answer

    @rule(data=st.data())
    def append(self, data: st.DataObject) -> None:
        room = CAPACITY - len(self.tokens)
        if room < 1:
            return
        ids = data.draw(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=min(room, 12)))
        self.session.append(ids)
        self.tokens += ids
        self.future = None

    @precondition(lambda self: self.tokens)
    @rule(params=st.sampled_from(ANSWERS))
    def begin(self, params: SamplingParams) -> None:
        self.session.begin(params)
        room = CAPACITY + 1 - len(self.tokens)
        self.future = reference_decode(self.bench.language, self.tokens, room, params)
        self.decode(2)

    @precondition(lambda self: self.future)
    @rule(rounds=st.integers(1, 6))
    def decode(self, rounds: int) -> None:
        for _ in range(rounds):
            if not self.future:
                return
            emitted = list(self.session.round().tokens)
            assert emitted == self.future[: len(emitted)]
            self.tokens += emitted
            del self.future[: len(emitted)]

    @precondition(lambda self: self.tokens)
    @rule(back=st.integers(0, 12))
    def rewind(self, back: int) -> None:
        length = max(0, len(self.tokens) - back)
        self.session.rewind(length)
        del self.tokens[length:]
        self.future = None

    @precondition(lambda self: len(self.tokens) > 40)  # rare, so that long histories are reached
    @rule()
    def reset(self) -> None:
        self.session.reset()
        self.tokens = []
        self.future = None

    @rule()
    def poison_unused_rows(self) -> None:
        self.bench.target.poison(self.session.cache_length, 1e4)

    @invariant()
    def holds_what_was_committed(self) -> None:
        if not hasattr(self, "session"):
            return
        assert self.session.tokens.tolist() == self.tokens
        rows = self.session.cache_length
        assert rows <= max(len(self.tokens) - 1, 0)
        if rows:
            assert np.array_equal(self.bench.target.rows(rows), clean_rows(self.tokens[:rows]))
        if isinstance(self.proposer, ModelProposer) and self.proposer.cache_length:
            assert self.bench.draft is not None
            rows = self.proposer.cache_length
            assert np.array_equal(self.bench.draft.rows(rows), clean_rows(self.tokens[:rows]))


TestInterleaving = Interleaving.TestCase
TestInterleaving.settings = settings(max_examples=120, stateful_step_count=30, deadline=None)
