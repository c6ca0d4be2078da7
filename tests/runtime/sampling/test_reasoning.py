"""Where reasoning ends, also inside an accepted run, and what a budget forces; the same with and without drafts."""

from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specruntime import SamplingParams, complete
from specruntime.drafts import ModelDraft, NgramDraft
from specruntime.errors import InvalidArgument
from specruntime.sampling.reasoning import ReasoningMarks, ReasoningState
from specruntime.sampling.sampler import Sampler
from tests.runtime.scripted_bundle import scripted_bundle
from tests.runtime.scripted_engine import VOCAB, Language, draft_spec

PIECES = (
    "<",
    "th",
    "ink>",
    "</",
    "</th",
    "ink",
    ">",
    "a",
    " ",
    "\n",
    "k></think>b",
    "<think>",
    "</think>",
    "",
)
END = (3, 1, 2)  # </ th ink>


def marks(*, begun: bool = False, end_ids: tuple[int, ...] = END) -> ReasoningMarks:
    pieces = [piece.encode() for piece in PIECES]
    return ReasoningMarks(
        "<think>", "</think>", end_ids, begun, lambda token: pieces[token] if token < len(pieces) else b"."
    )


def tokens(*pieces: str) -> list[int]:
    return [PIECES.index(piece) for piece in pieces]


@pytest.mark.parametrize(
    ("pieces", "begun", "phase", "inside"),
    [
        (["a"], False, "after", 0),
        ([" ", "\n", ""], False, "before", 3),
        (["<", "th", "a"], False, "after", 0),
        ([" ", "<", "th", "ink>", "a"], False, "inside", 5),
        (["<think>", "a", "</think>", "a", "a"], False, "after", 3),
        (["<think>", "a", "</th", "ink", ">", "a"], False, "after", 5),
        (["<think>", "</", "</th", "ink>", "a"], False, "after", 4),
        (["a", "</think>", "a"], True, "after", 2),
        (["a", "a", "<think>", "a"], True, "inside", 4),
        (["</th", "ink", "a"], True, "inside", 3),
        (["<", "th", "ink", ">", "</think>"], False, "after", 5),
    ],
)
def test_the_end_is_found_inside_a_run(pieces: list[str], begun: bool, phase: str, inside: int) -> None:
    """At once, and token by token; the state it is asked for stays as it is."""
    state = ReasoningState(marks(begun=begun))
    assert state.after(tokens(*pieces)).phase == phase
    assert (state.phase, state.tokens) == ("inside" if begun else "before", 0)
    slow = state.copy()
    counted = sum(slow.feed([token]) for token in tokens(*pieces))
    assert state.feed(tokens(*pieces)) == inside and counted >= inside
    assert slow.phase == state.phase == phase and state.ended == (phase == "after")
    assert slow.tokens == state.tokens


def test_a_budget_forces_the_end_mark() -> None:
    state = ReasoningState(marks(), 2)
    assert state.forced is None and state.bounded
    state.feed(tokens("<think>", "a"))
    assert state.forced is None
    state = state.after(tokens("a"))
    for token in END:
        assert state.forced == token
        state = state.after([token])
    assert state.ended and state.forced is None and not state.bounded
    none = ReasoningState(marks(begun=True), 0)
    assert none.forced == END[0]
    assert ReasoningState(marks(begun=True)).after(tokens("a") * 99).forced is None


def test_a_mark_that_reads_otherwise_in_its_place_is_forced_once() -> None:
    state = ReasoningState(marks(begun=True, end_ids=(7, 7)), 1)
    assert state.after(tokens("a", "a", "a")).ended


def test_a_budget_needs_marks_and_marks_ids_of_the_vocabulary() -> None:
    with pytest.raises(InvalidArgument, match=r"thinking_token_budget needs the marks"):
        Sampler(SamplingParams(thinking_token_budget=3), VOCAB, (), [1])
    with pytest.raises(InvalidArgument, match="the end mark of the reasoning: token id 97 is outside"):
        Sampler(SamplingParams(reasoning=marks(end_ids=(VOCAB,))), VOCAB, (), [1])


OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "seeded": {"temperature": 0.9, "seed": 3},
    "logprobs": {"logprobs": 2},
    "penalised": {"repetition_penalty": 1.4, "logit_bias": {END[0]: -float("inf")}, "min_tokens": 30},
}
DRAFTS: dict[str, Any] = {
    "ngram": NgramDraft(k=4, max_n=3, min_n=1),
    "model": ModelDraft(k=4, graph=draft_spec(capacity=256)),
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("kind", DRAFTS)
@pytest.mark.parametrize("budget", [0, 1, 5, 11])
def test_a_budget_is_exact_under_drafts(kind: str, options: dict[str, Any], budget: int) -> None:
    """The forced tokens come at their places, whatever options say, and the rest is what plain decoding has."""
    bundle, _ = scripted_bundle(draft=DRAFTS[kind], language=Language(habit=3.0), capacity=256)
    quiet = replace(marks(begun=True), token_bytes=lambda token: b"</think>" if token == END[-1] else b".")
    params = SamplingParams(**{"max_tokens": 40, **options}, thinking_token_budget=budget, reasoning=quiet)
    answers = []
    for speculate in (True, False):
        with closing(bundle.new_session(speculate=speculate)) as session:
            answers.append(complete(session, [3, 5, 3, 5, 3], params))
    drafted, plain = answers
    assert drafted.token_ids == plain.token_ids and len(plain.token_ids) == 40
    if END[-1] not in plain.token_ids[:budget]:
        assert plain.token_ids[budget : budget + 3] == END
    assert kind != "model" or drafted.stats.accepted > 0


@pytest.mark.parametrize("kind", DRAFTS)
def test_a_budget_holds_where_drafts_are_drawn(kind: str) -> None:
    bundle, _ = scripted_bundle(draft=DRAFTS[kind], language=Language(habit=3.0), capacity=256)
    quiet = replace(marks(begun=True), token_bytes=lambda token: b".")
    for seed in range(6):
        params = SamplingParams(
            temperature=0.8,
            seed=seed,
            accept="rejection",
            max_tokens=24,
            thinking_token_budget=7,
            reasoning=quiet,
        )
        with closing(bundle.new_session()) as session:
            assert complete(session, [3, 5, 3], params).token_ids[7:10] == END


@given(st.lists(st.integers(0, len(PIECES) - 1), max_size=24), st.booleans())
def test_it_is_what_the_text_says(ids: list[int], begun: bool) -> None:
    """Compared with the text of all tokens so far."""
    state, said = ReasoningState(marks(begun=begun)), "<think>" if begun else ""
    for token in ids:
        state.feed([token])
        said += PIECES[token]
        start, _, rest = said.lstrip().partition("<think>")
        if start == "" and said.lstrip().startswith("<think>"):
            assert state.phase == ("after" if "</think>" in rest else "inside")
        else:
            assert state.phase == ("before" if "<think>".startswith(said.lstrip()) else "after")
