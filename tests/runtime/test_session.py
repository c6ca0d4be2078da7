"""What a session accepts, refuses and survives; the oracles of its output are in test_round_oracles.py."""

from collections.abc import Callable
from threading import Event, Thread

import numpy as np
import pytest

from specruntime.drafts import ModelDraft
from specruntime.errors import (
    CapacityExceeded,
    EmptyPrompt,
    EngineFailed,
    InvalidArgument,
    SessionBusy,
    SessionPoisoned,
    SpecError,
    WrongState,
)
from specruntime.sampling.params import SamplingParams
from tests.runtime.scripted_engine import (
    VOCAB,
    Bench,
    Language,
    ScriptedContext,
    TableDraft,
    clean_rows,
    draft_spec,
    graph_spec,
    reference_decode,
    target_spec,
)

PROMPT = [5, 9, 2, 40, 7]
GREEDY = SamplingParams()


def begun(bench: Bench) -> Bench:
    bench.session.append(PROMPT)
    bench.session.begin(GREEDY)
    return bench


@pytest.mark.parametrize(
    ("ids", "error", "said"),
    [
        ([], EmptyPrompt, "at least one"),
        (np.array([], np.int64), EmptyPrompt, "at least one"),
        ([1, VOCAB], InvalidArgument, f"token id {VOCAB} at index 1"),
        ([-1], InvalidArgument, "token id -1 at index 0"),
        ([2**70], InvalidArgument, "object"),
        ([1.0], InvalidArgument, "float64"),
        ([True], InvalidArgument, "bool"),
        ([[1, 2]], InvalidArgument, "2 dimensions"),
        ([[1], [1, 2]], InvalidArgument, "one-dimensional sequence of integers, found one that is not"),
        (7, InvalidArgument, "0 dimensions"),
        (list(range(65)), CapacityExceeded, "capacity of 64"),
    ],
)
def test_append_refuses_what_is_no_prompt_and_changes_nothing(
    ids: list[int], error: type[SpecError], said: str
) -> None:
    session = Bench().session
    with pytest.raises(error, match=said):
        session.append(ids)
    assert session.length == 0
    session.append(range(64))


def test_what_does_not_fit_is_told_with_what_the_session_holds_if_it_holds_anything() -> None:
    session = Bench().session
    with pytest.raises(
        CapacityExceeded, match=r"^65 tokens pass the capacity of 64: shorten the prompt, or raise"
    ):
        session.append(range(65))
    session.append(range(4))
    with pytest.raises(
        CapacityExceeded,
        match=r"^61 tokens and the 4 before them pass the capacity of 64: shorten the prompt, reset the session, or",
    ):
        session.append(range(61))


def test_append_takes_any_integer_array() -> None:
    session = Bench().session
    session.append(np.array([1, 2], np.uint8))
    session.append(np.array([3], np.int32))
    assert session.tokens.tolist() == [1, 2, 3]


def test_tokens_cannot_be_written() -> None:
    session = begun(Bench()).session
    with pytest.raises(ValueError, match="read-only"):
        session.tokens[0] = 1


def test_begin_needs_tokens() -> None:
    with pytest.raises(EmptyPrompt, match="append a prompt"):
        Bench().session.begin(GREEDY)


def test_round_needs_an_answer_that_fits_the_tokens() -> None:
    session = Bench().session
    session.append(PROMPT)
    changes: list[Callable[[], None]] = [
        lambda: None,
        lambda: session.append([1]),
        lambda: session.rewind(session.length),
    ]
    for change in changes:
        change()
        with pytest.raises(WrongState, match="begin"):
            session.round()
        session.begin(GREEDY)
        session.round()


def test_rewind_stays_inside_the_session() -> None:
    session = begun(Bench()).session
    for length in (-1, 6):
        with pytest.raises(InvalidArgument, match=f"rewind to {length}: the session holds 5"):
            session.rewind(length)
    with pytest.raises(InvalidArgument, match="too long to show"):
        session.rewind(10**5000)
    for odd in ("0", 0.5, None, True, [0]):
        with pytest.raises(InvalidArgument, match="expected an integer"):
            session.rewind(odd)  # type: ignore[arg-type]
    assert session.length == 5
    session.rewind(np.int64(3))  # type: ignore[arg-type]
    assert session.length == 3 and type(session.length) is int
    session.rewind(0)
    assert session.length == 0


@pytest.mark.parametrize("before", [0, 1, 6])
def test_a_prompt_may_be_fed_before_its_answer_begins(before: int) -> None:
    """The same tokens, with all rows but the last in the cache, and the first round may draft."""
    bench = Bench(ModelDraft(k=3, graph=draft_spec()))
    session = bench.session
    if before:
        session.append((PROMPT * 3)[:before])
    fed = (PROMPT * 3)[before:]
    session.prefill(fed)
    assert (session.length, session.cache_length) == (len(PROMPT) * 3, len(PROMPT) * 3 - 1)
    assert np.array_equal(bench.target.rows(session.cache_length), clean_rows(PROMPT * 3)[:-1])
    session.begin(GREEDY)
    runs = len(bench.target.runs)
    first = session.round()
    assert first.proposed == 3 and bench.target.runs[runs:] == ["verify_5"]
    while session.length < len(PROMPT) * 3 + 20:
        session.round()
    expected = reference_decode(bench.language, PROMPT * 3, 20, GREEDY)
    assert session.tokens[len(PROMPT) * 3 :][:20].tolist() == expected
    stats = session.stats
    assert stats.prefills == 0 and stats.tokens == stats.rounds + stats.accepted
    assert not any(name == "prefill" for name in stats.target.calls)


def test_one_token_is_fed_with_the_round_after_it() -> None:
    bench = Bench()
    bench.session.prefill([5])
    assert bench.target.runs == [] and bench.session.cache_length == 0


def test_what_prefill_refuses_adds_nothing_and_what_fails_poisons() -> None:
    bench = Bench()
    with pytest.raises(EmptyPrompt):
        bench.session.prefill([])
    with pytest.raises(CapacityExceeded):
        bench.session.prefill([1] * (bench.session.capacity + 1))
    assert bench.session.length == 0 and not bench.session.poisoned
    bench.target.failing = lambda: True
    with pytest.raises(EngineFailed):
        bench.session.prefill(PROMPT)
    assert bench.session.poisoned


def test_a_closed_session_only_closes() -> None:
    bench = begun(Bench(ModelDraft(k=2, graph=draft_spec())))
    session = bench.session
    session.close()
    session.close()
    assert bench.target.closed and bench.draft is not None and bench.draft.closed
    for call in (session.round, session.reset, lambda: session.append([1]), lambda: session.rewind(0)):
        with pytest.raises(WrongState, match="closed"):
            call()


@pytest.mark.parametrize("failing", ["target", "draft"])
@pytest.mark.parametrize("rounds_before", [0, 1, 3])
def test_an_engine_failure_poisons_until_reset(failing: str, rounds_before: int) -> None:
    bench = begun(Bench(ModelDraft(k=3, graph=draft_spec())))
    session = bench.session
    for _ in range(rounds_before + (failing == "draft")):  # a prefill does not draft
        session.round()
    tokens = session.tokens.tolist()
    context = bench.target if failing == "target" else bench.draft
    assert context is not None
    context.failing = lambda: True
    with pytest.raises(EngineFailed):
        session.round()
    assert (session.poisoned, session.tokens.tolist()) == (True, tokens)
    context.failing = lambda: False
    for call in (
        session.round,
        lambda: session.append([1]),
        lambda: session.rewind(0),
        lambda: session.begin(GREEDY),
    ):
        with pytest.raises(SessionPoisoned, match="reset"):
            call()
    session.reset()
    assert (session.poisoned, session.length) == (False, 0)
    assert not context.rows(session.capacity).any(), "a healed cache is zeroed"
    assert bench.decode(PROMPT, 20) == reference_decode(bench.language, PROMPT, 20, GREEDY)


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, RuntimeError])
def test_any_exception_of_a_run_poisons(error: type[BaseException]) -> None:
    bench = begun(Bench())

    def interrupt() -> bool:
        raise error

    bench.target.failing = interrupt
    with pytest.raises(error):
        bench.session.round()
    assert bench.session.poisoned


def test_logits_that_are_no_numbers_poison() -> None:
    bench = Bench()
    bench.session.append(PROMPT)
    bench.session.begin(SamplingParams(temperature=1))
    bench.session.round()
    bench.target.poison(0, np.nan)
    with pytest.raises(EngineFailed):
        bench.session.round()
    assert bench.session.poisoned


def test_a_failing_accept_leaves_the_session_as_it_was() -> None:
    bench = begun(Bench())
    bench.session.round()
    bench.session.begin(SamplingParams(logit_bias=dict.fromkeys(range(VOCAB), -np.inf)))
    before = bench.session.tokens.tolist()
    with pytest.raises(InvalidArgument):
        bench.session.round()
    assert bench.session.tokens.tolist() == before and not bench.session.poisoned
    bench.session.begin(GREEDY)
    bench.session.round()
    assert bench.session.tokens.tolist() == PROMPT + reference_decode(bench.language, PROMPT, 2, GREEDY)


@pytest.mark.parametrize("accept", ["match", "rejection"])
@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_a_ban_on_every_token_that_the_draft_meets_first_poisons_nothing(accept: str, rounds: int) -> None:
    bench = begun(Bench(ModelDraft(k=3, graph=draft_spec())))
    for _ in range(1 + rounds):
        bench.session.round()
    before = bench.session.tokens.tolist()
    banned = dict.fromkeys(range(VOCAB), -np.inf)
    bench.session.begin(SamplingParams(temperature=1, logit_bias=banned, accept=accept))  # type: ignore[arg-type]
    assert bench.target.runs and bench.draft is not None
    for _ in range(2):
        target_runs, draft_runs = len(bench.target.runs), len(bench.draft.runs)
        with pytest.raises(InvalidArgument, match="every token is banned"):
            bench.session.round()
        assert len(bench.draft.runs) > draft_runs and len(bench.target.runs) == target_runs
        assert bench.session.tokens.tolist() == before and not bench.session.poisoned
    bench.session.begin(GREEDY)
    while bench.session.length < len(before) + 20:
        bench.session.round()
    expected = PROMPT + reference_decode(bench.language, PROMPT, 50, GREEDY)
    assert bench.session.tokens.tolist() == expected[: bench.session.length]
    assert bench.session.stats.accepted == bench.session.stats.proposed > 0, (
        "the draft's cache is what it was"
    )


def test_a_second_thread_is_refused_while_a_round_runs() -> None:
    bench = begun(Bench())
    inside, release = Event(), Event()

    def wait() -> bool:
        inside.set()
        return not release.wait(timeout=120)

    bench.target.failing = wait
    running = Thread(target=bench.session.round)
    running.start()
    assert inside.wait(timeout=120)
    session = bench.session
    for call in (session.round, session.reset, session.close, lambda: session.append([1])):
        with pytest.raises(SessionBusy, match="one session per thread"):
            call()
    release.set()
    running.join(timeout=120)
    assert session.length == len(PROMPT) + 1, "the running round was not disturbed"
    session.round()


def test_batches_are_refused_by_name() -> None:
    spec = graph_spec([("step", 1, 1)], batch=2)
    with pytest.raises(InvalidArgument, match=r"bound for 2.*new_batch"):
        Bench(target=spec)


@pytest.mark.parametrize(
    ("widths", "said"),
    [([("step", 1, 1), ("odd", 4, 2)], "'odd' .4 wide, 2 rows"), ([("prefill", 8, 1)], "width 1")],
)
def test_graphs_that_cannot_be_driven_are_refused(widths: list[tuple[str, int, int]], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        Bench(target=graph_spec(widths))


def test_draft_and_target_share_one_vocabulary() -> None:
    graph = graph_spec([("step", 1, 1)], vocab=50)
    with pytest.raises(InvalidArgument, match="50 tokens, the target 97"):
        Bench(ModelDraft(k=2, graph=graph), draft_language=Language(vocab=50))


def test_each_window_is_the_narrowest_that_serves() -> None:
    """Profiles 1, 3, 5, 16: how prompts are cut, how drafts are judged, and the fall back near the capacity."""
    spec = target_spec(verify=(3, 5), prefill=16, capacity=40)
    prompt = list(range(20))
    answer = reference_decode(Language(), prompt, 21, GREEDY)
    bench = Bench(target=spec, proposer=TableDraft(len(prompt), answer, k=4))
    assert bench.decode(prompt, 21) == answer
    cut = ["prefill", "verify_5"]  # 16 + 4 (the verify window is cheaper than five steps or a padded chunk)
    judged = ["verify_5"] * 4  # rows 20..39
    assert bench.target.runs == cut + judged
    assert bench.target.valid == [16, 4, 5, 5, 5, 5], "padding is declared"
    assert bench.session.cache_length == 40
    with pytest.raises(CapacityExceeded, match="all 40 rows"):
        bench.session.round()
    assert not bench.session.poisoned


def test_nothing_is_drafted_past_max_tokens() -> None:
    answer = reference_decode(Language(), PROMPT, 40, GREEDY)
    for cap in range(1, 12):
        bench = Bench(proposer=TableDraft(len(PROMPT), answer, k=4))
        assert bench.decode(PROMPT, cap, SamplingParams(max_tokens=cap)) == answer[:cap]
        assert bench.session.length == len(PROMPT) + cap


def test_the_next_turn_feeds_only_its_own_tokens() -> None:
    bench = Bench(target=target_spec(capacity=128, prefill=64))
    bench.decode(list(range(60)), 4)
    bench.target.runs.clear()
    before = bench.session.length
    bench.decode([3, 4], 1)
    assert bench.target.runs == ["verify_5"], "one window: the last answer token and two new ones"
    tokens = bench.session.tokens[: before + 2].tolist()
    assert bench.session.tokens[before + 2] == reference_decode(bench.language, tokens, 1, GREEDY)[0]


def test_statistics_add_up() -> None:
    bench = Bench(
        ModelDraft(k=4, graph=draft_spec(capacity=200)),
        target=target_spec(capacity=200),
        draft_language=Language(drift=3),
    )
    session = bench.session
    session.append(PROMPT)
    session.begin(GREEDY)
    rounds = []
    while session.length < 150:
        rounds.append(session.round())
    stats = session.stats
    assert stats.tokens == session.length - len(PROMPT) == sum(len(r.tokens) for r in rounds)
    assert stats.tokens == stats.prefills + stats.rounds + stats.accepted
    assert stats.prefills == 1 and stats.rounds == len(rounds) - 1
    assert stats.accepted == sum(r.accepted for r in rounds) <= stats.evaluated <= stats.proposed
    assert stats.proposed == sum(r.proposed for r in rounds)
    assert 1 + sum(stats.acceptance_by_position) == pytest.approx(stats.acceptance_length)
    assert all(a >= b for a, b in zip(stats.accepted_at, stats.accepted_at[1:], strict=False))
    assert 0 < stats.accepted < stats.proposed, "this draft is right sometimes"
    assert sum(stats.target.calls.values()) == len(bench.target.runs)
    assert isinstance(bench.draft, ScriptedContext)
    assert sum(stats.draft.calls.values()) == len(bench.draft.runs)
    phases = stats.draft_seconds + stats.verify_seconds + stats.accept_seconds
    assert stats.host_seconds > 0 and phases <= stats.round_seconds
    session.begin(GREEDY)
    assert session.stats.tokens == 0, "each answer has its own statistics"
    assert stats.tokens > 0


@pytest.mark.parametrize("params", [None, {"temperature": 0}, 3])
def test_begin_takes_sampling_params_and_nothing_else(params: object) -> None:
    bench = Bench()
    bench.session.append(PROMPT)
    with pytest.raises(InvalidArgument, match="begin takes SamplingParams, found"):
        bench.session.begin(params)  # type: ignore[arg-type]
    bench.session.begin(SamplingParams())
    assert bench.session.round().tokens
