"""Constrained answers of whole sessions: every kind of draft gives the tokens of plain constrained decoding."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from specruntime.drafts import DraftSpec, ModelDraft, NgramDraft
from specruntime.errors import CapacityExceeded, DeadEnd, InvalidArgument
from specruntime.generation import Answer
from specruntime.sampling.constraint import Constraint
from specruntime.sampling.params import SamplingParams
from specruntime.sampling.structured import StructuredOutputsParams
from specruntime.session import Session
from tests.runtime.constraints.toy_grammar import Toy
from tests.runtime.drafts.test_sessions import KINDS, Trial
from tests.runtime.scripted_engine import (
    VOCAB,
    Bench,
    Language,
    TableDraft,
    draft_spec,
    reference_decode,
    target_spec,
)

PROMPT = [5, 9, 2, 40, 7, 11]
ENDS = (3, 4)
FORM = StructuredOutputsParams(regex="any: the tests bring their own grammar")
GREEDY = SamplingParams(structured_outputs=FORM)
PARAMS = {
    "greedy": GREEDY,
    "sampled": replace(GREEDY, temperature=0.9, seed=5),
    "penalised": replace(
        GREEDY, temperature=0.7, top_k=30, repetition_penalty=1.3, logit_bias={7: 2.0}, min_tokens=2, seed=8
    ),
}
GRAMMARS = {
    "loose": Toy(1, VOCAB, ENDS, share=0.9, forced=0.05, ending=0.02),
    "tight": Toy(2, VOCAB, ENDS, share=0.05, forced=0.3, ending=0.02),
    "forced": Toy(3, VOCAB, ENDS, share=0.2, forced=0.8, ending=0.02),
}
COUNT = 60
CHAINS: dict[str, Callable[[], DraftSpec | None]] = {
    "none": lambda: None,
    "ngram": lambda: NgramDraft(k=4, max_n=2, min_n=1),
    "model": lambda: ModelDraft(k=4, graph=draft_spec(capacity=512)),
}


def bench(kind: str, toy: Toy) -> Session:
    """A session whose answers follow the grammar."""

    def constrain(params: SamplingParams) -> Constraint | None:
        return None if params.structured_outputs is None else toy.constraint()

    if kind in CHAINS:
        return Bench(
            CHAINS[kind](),
            target=target_spec(verify=(2, 5, 9), capacity=512),
            draft_language=Language(drift=3),
            constrain=constrain,
            eos=ENDS,
        ).session
    trial = Trial(kind, drift=3.0, constrain=constrain)
    trial.session.manifest = trial.session.manifest.model_copy(update={"eos_token_ids": ENDS})
    return trial.session


def decode(
    session: Session, params: SamplingParams, count: int = COUNT, prompt: Sequence[int] = PROMPT
) -> list[int]:
    session.append(prompt)
    session.begin(params)
    start = session.length
    answer = Answer(session, replace(params, max_tokens=count), None)
    while answer.finish_reason is None:
        answer.deliver(session.round())
    return [int(token) for token in session.tokens[start:]]


def expected(toy: Toy, params: SamplingParams, count: int = COUNT) -> list[int]:
    return reference_decode(Language(), PROMPT, count, params, ENDS, toy.constraint())


@pytest.mark.parametrize("kind", [*CHAINS, *KINDS])
@pytest.mark.parametrize("name", PARAMS)
@pytest.mark.parametrize("grammar", GRAMMARS)
def test_no_kind_of_draft_changes_a_token_of_a_constrained_answer(kind: str, name: str, grammar: str) -> None:
    toy = GRAMMARS[grammar]
    for seed in range(4):
        params = replace(PARAMS[name], seed=seed)
        answer = decode(bench(kind, toy), params)
        assert answer == expected(toy, params)
        assert toy.allows(answer)


@pytest.mark.parametrize("kind", [*CHAINS, *KINDS])
def test_a_draft_is_not_refused_for_what_the_grammar_forbids(kind: str) -> None:
    """Where little may follow and much is forced, most of what is proposed is accepted."""
    session = bench(kind, GRAMMARS["forced"])
    answer = decode(session, GREEDY)
    stats = session.stats
    assert stats.tokens == stats.prefills + stats.rounds + stats.accepted + stats.forced
    assert stats.rounds < 0.75 * len(answer), "what must follow takes no round of its own"
    if kind == "none":
        assert stats.forced > 0 and stats.accepted == 0


@pytest.mark.parametrize("kind", ["model", *KINDS])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_rejection_under_a_constraint_repeats_itself_and_stays_in_the_grammar(
    kind: str, temperature: float
) -> None:
    toy = GRAMMARS["tight"]
    params = replace(GREEDY, temperature=temperature, seed=3, accept="rejection")
    answers = [decode(bench(kind, toy), params) for _ in range(2)]
    assert answers[0] == answers[1] and toy.allows(answers[0])
    if not temperature:
        assert answers[0] == expected(toy, GREEDY)


@pytest.mark.parametrize("kind", [*CHAINS, *KINDS])
def test_a_limit_is_kept_at_every_position(kind: str) -> None:
    toy = GRAMMARS["forced"]
    whole = expected(toy, GREEDY, 14)
    for cap in range(1, len(whole)):
        params = replace(GREEDY, max_tokens=cap)
        session = bench(kind, toy)
        session.append(PROMPT)
        session.begin(params)
        while session.length < len(PROMPT) + cap:
            session.round()
        assert session.tokens[len(PROMPT) :].tolist() == whole[:cap]


@pytest.mark.parametrize("kind", ["none", "ngram", "model"])
def test_the_last_row_of_the_cache_is_reached_exactly(kind: str) -> None:
    toy = Toy(3, VOCAB, ENDS, share=0.2, forced=0.8, ending=0.0)
    for capacity in range(8, 24):
        found = Bench(
            CHAINS[kind](),
            target=target_spec(verify=(2, 5), capacity=capacity),
            constrain=lambda params: toy.constraint(),
            eos=ENDS,
        ).session
        found.append(PROMPT)
        found.begin(GREEDY)
        with pytest.raises(CapacityExceeded):
            while True:
                found.round()
        assert found.length == capacity + 1
        assert found.tokens[len(PROMPT) :].tolist() == expected(toy, GREEDY, capacity + 1 - len(PROMPT))


def test_an_answer_stops_at_its_end_token_inside_a_run() -> None:
    """A draft that knows the answer and goes on behind its end: nothing is committed there."""
    toy = GRAMMARS["tight"]
    whole = next(
        answer
        for seed in range(50)
        if (answer := expected(toy, replace(PARAMS["sampled"], seed=seed)))[-1] in ENDS and len(answer) < 12
    )
    seed = next(s for s in range(50) if expected(toy, replace(PARAMS["sampled"], seed=s)) == whole)
    for k in (1, 3, 8):
        draft = TableDraft(len(PROMPT), [*whole, 8, 9, 8, 9, 8, 9, 8, 9], k)
        session = Bench(
            proposer=draft,
            target=target_spec(verify=(9,), capacity=128),
            constrain=lambda params: toy.constraint(),
            eos=ENDS,
        ).session
        session.append(PROMPT)
        session.begin(replace(PARAMS["sampled"], seed=seed))
        while session.length < len(PROMPT) + len(whole):
            session.round()
        assert session.tokens[len(PROMPT) :].tolist() == whole
        with pytest.raises(DeadEnd, match="has ended"):
            session.round()


def test_a_dead_end_is_an_error_of_its_answer_alone() -> None:
    toy = GRAMMARS["forced"]
    whole = expected(toy, GREEDY, 20)
    place = next(n for n in range(3, 20) if toy.mask(whole[:n]).sum() == 1)
    banned = replace(GREEDY, logit_bias={whole[place]: -np.inf})
    for kind in ("none", "ngram", "model", "chain", "tree"):
        session = bench(kind, toy)
        session.append(PROMPT)
        session.begin(banned)
        with pytest.raises(DeadEnd, match="banned"):
            while True:
                session.round()
        kept = session.tokens[len(PROMPT) :].tolist()
        assert whole[place] not in kept and kept == expected_until_dead_end(toy, banned)
        session.rewind(len(PROMPT))
        session.begin(GREEDY)
        while session.length < len(PROMPT) + 20:
            session.round()
        assert session.tokens[len(PROMPT) : len(PROMPT) + 20].tolist() == whole


def expected_until_dead_end(toy: Toy, params: SamplingParams) -> list[int]:
    count = 0
    while True:
        try:
            found = expected(toy, params, count + 1)
        except DeadEnd:
            return expected(toy, params, count)
        count = len(found)


def test_free_and_constrained_answers_follow_each_other_in_a_session() -> None:
    toy = GRAMMARS["forced"]
    for kind in [*CHAINS, *KINDS]:
        session = bench(kind, toy)
        first = decode(session, replace(GREEDY, max_tokens=12), 12)
        tokens = session.tokens.tolist()
        second = decode(session, SamplingParams(ignore_eos=True), 20, [8, 9])
        prompt = [*tokens, 8, 9]
        free = SamplingParams(ignore_eos=True)
        assert second == reference_decode(Language(), prompt, 20, free, ENDS)
        assert first == expected(toy, GREEDY, 12)


def test_an_answer_without_end_tokens_is_refused() -> None:
    session = bench("none", GRAMMARS["tight"])
    session.append(PROMPT)
    with pytest.raises(InvalidArgument, match="need the tokenizer"):
        Bench().decode(PROMPT, 3, GREEDY)
    with pytest.raises(InvalidArgument, match="end token"):
        Constraint(GRAMMARS["tight"].constraint()._matcher, VOCAB, ())


def test_masks_are_found_once_for_each_state() -> None:
    """What was found out for a draft serves its verification, and the next round."""
    toy = GRAMMARS["loose"]
    made: list[Constraint] = []

    def constrain(params: SamplingParams) -> Constraint:
        made.append(toy.constraint())
        return made[-1]

    bench = Bench(
        ModelDraft(k=4, graph=draft_spec(capacity=512)),
        target=target_spec(verify=(5,), capacity=512),
        constrain=constrain,
        eos=ENDS,
    )
    answer = bench.decode(PROMPT, 40, replace(GREEDY, min_tokens=40))
    matcher = made[0]._matcher
    assert matcher.found <= len(answer) + 6  # type: ignore[attr-defined]  # a draft that is always right


def test_custom_processors_are_exact_with_every_draft() -> None:
    def shift(ids: list[int], row: np.ndarray) -> np.ndarray:
        row[(sum(ids) * 7 + len(ids)) % VOCAB] += 6
        return row

    for name, params in PARAMS.items():
        custom = replace(params, logits_processors=[shift], structured_outputs=None, min_tokens=0)  # type: ignore[arg-type]
        for kind in [*CHAINS, *KINDS]:
            free = replace(custom, ignore_eos=True)
            answer = decode(bench(kind, GRAMMARS["tight"]), free, 40)
            assert answer == reference_decode(Language(), PROMPT, 40, free, ENDS), (name, kind)
        constrained = replace(custom, structured_outputs=FORM)
        found = decode(bench("model", GRAMMARS["tight"]), constrained, 40)
        assert found == expected(GRAMMARS["tight"], constrained, 40)


@pytest.mark.parametrize(
    "broken",
    [
        lambda ids, row: None,
        lambda ids, row: row[:5],
        lambda ids, row: row.astype(np.int64),
        lambda ids, row: 1 / 0,
    ],
)
def test_a_processor_that_fails_ends_its_answer_alone(broken: Callable[..., object]) -> None:
    session = bench("ngram", GRAMMARS["tight"])
    session.append(PROMPT)
    session.begin(SamplingParams(logits_processors=[broken]))  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="logits processor"):
        session.round()
    assert not session.poisoned
