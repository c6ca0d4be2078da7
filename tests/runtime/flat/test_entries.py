"""What the entries do, on a scripted engine: lifetimes, answers, and reading a session."""

from dataclasses import fields

import numpy as np
import pytest

from specruntime import flat
from specruntime.abi import SessionState, Status
from specruntime.drafts import KINDS, ModelDraft, NoneDraft
from specruntime.flat.answers import _sampling_params
from specruntime.sampling.params import SamplingParams
from specruntime.sampling.sampler import token_logprobs
from specruntime.session import Session
from tests.runtime.flat.flat_calls import (
    Caller,
    begin_arguments,
    call,
    committed,
    generate,
    last_error,
    one,
    run_round,
    sampling,
    state_of,
    succeed,
)
from tests.runtime.scripted_engine import VOCAB, clean_logits, reference_decode

PROMPT = [5, 9, 2, 40, 7, 5, 9]


def expected(caller: Caller, count: int, params: SamplingParams | None = None) -> list[int]:
    return reference_decode(caller.language, PROMPT, count, params or SamplingParams())


def test_rounds_deliver_the_tokens_of_plain_decoding(caller: Caller) -> None:
    session = caller.begun(PROMPT)
    answer: list[int] = []
    while len(answer) < 30:
        answer += run_round(session)[0]
    assert answer == expected(caller, len(answer))
    assert committed(session) == PROMPT + answer


def test_speculation_can_be_left_out(caller: Caller) -> None:
    session = caller.open(speculate=0)
    succeed("spx_session_append", session, np.array(PROMPT), len(PROMPT))
    succeed("spx_session_begin", session, *begin_arguments())
    assert [run_round(session, room=1)[0] for _ in range(8)] == [[token] for token in expected(caller, 8)]


def test_a_buffer_of_max_tokens_takes_the_whole_answer(caller: Caller) -> None:
    for limit in range(1, 12):
        session = caller.begun(PROMPT, sampling(max_tokens=limit))
        assert generate(session, limit) == (expected(caller, limit), flat.Finish.LENGTH)
        assert state_of(session) is SessionState.ENDED


def test_generate_goes_on_where_its_buffer_ended(caller: Caller) -> None:
    session = caller.begun(PROMPT, sampling(max_tokens=40, temperature=0.8, seed=3))
    answer: list[int] = []
    finish = flat.Finish.NONE
    while finish is flat.Finish.NONE:
        piece, finish = generate(session, 7)
        answer += piece
    assert answer == expected(caller, 40, SamplingParams(temperature=0.8, seed=3))


def test_the_answer_ends_with_its_stop_id_and_so_does_the_session(caller: Caller) -> None:
    plain = expected(caller, 30)
    for index, token in enumerate(plain):
        if token in plain[:index]:
            continue
        session = caller.begun(PROMPT, stop_ids=[token])
        assert generate(session, 64) == (plain[: index + 1], flat.Finish.STOP)
        assert committed(session) == PROMPT + plain[: index + 1]


def test_end_of_sequence_ids_end_it_unless_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = expected(Caller(monkeypatch), 12)
    caller = Caller(monkeypatch, eos=(plain[3],))
    count, ids = one(), np.zeros(1, np.int64)
    succeed("spx_engine_eos", caller.engine, ids, 1, count)
    assert ids.tolist() == [plain[3]] and count[0] == 1
    assert generate(caller.begun(PROMPT), 64)[1] is flat.Finish.STOP
    ignoring = sampling(max_tokens=12, ignore_eos=1)
    assert generate(caller.begun(PROMPT, ignoring), 64) == (plain, flat.Finish.LENGTH)


def test_a_full_cache_ends_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    caller = Caller(monkeypatch, capacity=16)
    session = caller.begun(PROMPT)
    answer, finish = generate(session, 64)
    assert finish is flat.Finish.CAPACITY and answer == expected(caller, 16 - len(PROMPT) + 1)
    assert call("spx_session_append", session, np.array([1]), 1) is Status.CAPACITY_EXCEEDED
    succeed("spx_session_begin", session, *begin_arguments())
    tokens, count, finished = np.zeros(5, np.int64), one(), one(np.int32)
    assert (
        call("spx_session_round", session, tokens, 5, count, None, None, finished) is Status.CAPACITY_EXCEEDED
    )


def test_a_session_walks_through_its_states(caller: Caller) -> None:
    session = caller.open()
    assert state_of(session) is SessionState.EMPTY
    succeed("spx_session_append", session, np.array(PROMPT), len(PROMPT))
    assert state_of(session) is SessionState.FILLED
    succeed("spx_session_begin", session, *begin_arguments(sampling(max_tokens=2)))
    assert state_of(session) is SessionState.ANSWERING
    generate(session, 2)
    assert state_of(session) is SessionState.ENDED
    succeed("spx_session_rewind", session, 3)
    assert (state_of(session), committed(session)) == (SessionState.FILLED, PROMPT[:3])
    succeed("spx_session_rewind", session, 0)
    assert state_of(session) is SessionState.EMPTY
    succeed("spx_session_append", session, np.array(PROMPT), len(PROMPT))
    succeed("spx_session_reset", session)
    assert (state_of(session), committed(session)) == (SessionState.EMPTY, [])


def test_a_second_turn_needs_its_new_tokens_only(caller: Caller) -> None:
    session = caller.begun(PROMPT, sampling(max_tokens=6))
    first, _ = generate(session, 6)
    succeed("spx_session_append", session, np.array([3, 1]), 2)
    succeed("spx_session_begin", session, *begin_arguments(sampling(max_tokens=6)))
    whole = [*PROMPT, *first, 3, 1]
    assert generate(session, 6)[0] == reference_decode(caller.language, whole, 6, SamplingParams())


def test_tokens_are_copied_from_where_they_are_asked_for(caller: Caller) -> None:
    session = caller.begun(PROMPT)
    tokens, count = np.zeros(9, np.int64), one()
    succeed("spx_session_tokens", session, 4, tokens, 9, count)
    assert tokens.tolist() == [7, 5, 9, 0, 0, 0, 0, 0, 0] and count[0] == 3
    for start in (-1, 8):
        assert call("spx_session_tokens", session, start, tokens, 9, count) is Status.INVALID_ARGUMENT


@pytest.mark.parametrize("top", [0, 3])
def test_logprobs_are_those_of_the_tokens_delivered_last(caller: Caller, top: int) -> None:
    session = caller.begun(PROMPT, sampling(max_tokens=9, logprobs=top))
    answer, _ = generate(session, 9)
    logprobs, count, top_count = np.zeros(9), one(), one()
    ids, values = np.zeros(9 * top, np.int64), np.zeros(9 * top)
    succeed("spx_session_logprobs", session, logprobs, 9, count, ids, values, ids.size, top_count)
    assert (count[0], top_count[0]) == (9, 9 * top)
    for index, token in enumerate(answer):
        row = token_logprobs(clean_logits(caller.language, PROMPT + answer[:index]), token, top, VOCAB)
        assert logprobs[index] == pytest.approx(row.logprob)
        assert ids.reshape(9, top)[index].tolist() == [id for id, _ in row.top]
        assert values.reshape(9, top)[index].tolist() == pytest.approx([value for _, value in row.top])


def test_logprobs_are_gone_once_the_tokens_change(caller: Caller) -> None:
    session = caller.begun(PROMPT, sampling(logprobs=1))
    arguments = (session, np.zeros(9), 9, one(), None, None, 0, None)
    assert call("spx_session_logprobs", *arguments) is Status.WRONG_STATE
    run_round(session)
    succeed("spx_session_logprobs", *arguments)
    succeed("spx_session_rewind", session, 2)
    assert call("spx_session_logprobs", *arguments) is Status.WRONG_STATE
    assert "begin with `logprobs`" in last_error(session)


def test_statistics_count_what_was_delivered(caller: Caller) -> None:
    session = caller.begun(PROMPT)
    delivered = sum(len(run_round(session)[0]) for _ in range(12))
    stats = np.zeros(1, flat.STATS)
    succeed("spx_session_stats", session, stats, stats.nbytes)
    figures = stats[0]
    assert figures["tokens"] == delivered == figures["prefills"] + figures["rounds"] + figures["accepted"]
    assert (
        figures["accepted"] <= figures["evaluated"] <= figures["proposed"] and figures["target_calls"] == 12
    )
    assert 0 < figures["target_seconds"] < figures["round_seconds"]


def test_an_engine_tells_what_buffers_need(caller: Caller) -> None:
    caller.open()
    info, needed, text = np.zeros(1, flat.INFO), one(), np.zeros(9, np.uint8)
    succeed("spx_engine_info", caller.engine, info, info.nbytes)
    assert dict(zip(info.dtype.names or (), info[0].item(), strict=True)) == {
        "capacity": 64,
        "vocab_size": VOCAB,
        "padded_vocab_size": 104,
        "k": 4,
        "round_tokens": 5,
        "layers": 1,
        "batch": 1,
        "eos_count": 0,
        "draft_kind": flat.DraftKind["NGRAM"],
        "has_tokenizer": 0,
        "has_chat_template": 0,
        "open_sessions": 1,
    }
    succeed("spx_engine_name", caller.engine, text, 9, needed)
    assert text.tobytes() == b"scripted\0" and needed[0] == 9


def test_without_a_draft_a_round_is_one_token(monkeypatch: pytest.MonkeyPatch) -> None:
    caller = Caller(monkeypatch, NoneDraft())
    assert run_round(caller.begun(PROMPT), room=1)[0] == expected(caller, 1)


def test_an_engine_with_open_sessions_is_not_closed(caller: Caller) -> None:
    first, second = caller.begun(PROMPT), caller.open()
    assert call("spx_engine_close", caller.engine) is Status.WRONG_STATE
    assert last_error(caller.engine) == "2 sessions of this engine are open: close them first"
    assert run_round(first)[0] == expected(caller, 1)
    for session in (first, second):
        succeed("spx_session_close", session)
    succeed("spx_engine_close", caller.engine)
    assert caller.scripted.closed and all(context.closed for context in caller.scripted.contexts)


def test_handles_are_never_used_again(caller: Caller) -> None:
    handles = []
    for _ in range(20):
        handles.append(caller.open())
        succeed("spx_session_close", handles[-1])
    assert len({caller.engine, *handles}) == 21
    for handle in handles:
        assert call("spx_session_reset", handle) is Status.INVALID_HANDLE


def test_a_session_that_cannot_be_opened_does_not_hold_its_engine(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full() -> None:
        raise MemoryError

    monkeypatch.setattr(caller.scripted, "new_context", full)
    assert call("spx_session_open", caller.engine, 1, one()) is Status.OUT_OF_MEMORY
    succeed("spx_engine_close", caller.engine)


def test_every_sampling_field_but_stop_strings_has_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = {
        "stop",
        "stop_token_ids",
        "logit_bias",
    }  # strings need text; the others are arguments of their own
    alone = {"n", "thinking_token_budget", "reasoning"}  # of LLM and chats
    of_python = {"structured_outputs", "logits_processors"}
    expected = {f.name for f in fields(SamplingParams)} - arrays - alone - of_python
    assert set(flat.PARAMS.names or ()) - {"text"} == expected
    begun: list[SamplingParams] = []
    monkeypatch.setattr(Session, "begin", lambda self, params: begun.append(params))
    caller = Caller(monkeypatch)
    session = caller.open()
    changed = {
        "temperature": 0.5,
        "top_k": 7,
        "top_p": 0.75,
        "min_p": 0.125,
        "repetition_penalty": 1.5,
        "presence_penalty": 0.25,
        "frequency_penalty": -0.25,
        "seed": 2**64 - 2,
        "max_tokens": 11,
        "min_tokens": 3,
        "logprobs": 0,
        "ignore_eos": 1,
        "accept": flat.AcceptRule.REJECTION,
    }
    assert set(changed) == set(flat.PARAMS.names or ()) - {"text"}
    for arguments in (
        begin_arguments(),
        begin_arguments(sampling()),
        begin_arguments(sampling(**changed), [4, 5], [8, 9], [1.5, -np.inf]),
    ):
        flat.spx_session_begin(session, *arguments)
    whole = changed | {"accept": "rejection", "ignore_eos": True}
    assert begun == [
        SamplingParams(),
        SamplingParams(),
        SamplingParams(**whole, stop_token_ids=(4, 5), logit_bias={8: 1.5, 9: -np.inf}),  # type: ignore[arg-type]
    ]


def test_every_draft_of_a_manifest_has_a_kind() -> None:
    kinds = {name for kind in KINDS for name in kind.names()}
    assert ModelDraft.model_fields["kind"].default in kinds
    assert {kind.upper() for kind in kinds} == {kind.name for kind in flat.DraftKind}


def test_without_a_seed_each_answer_draws_one_that_gives_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(**options: float) -> tuple[list[int], int]:
        caller = Caller(monkeypatch)
        tokens, seed = np.zeros(30, np.int64), np.zeros(1, np.uint64)
        session = caller.open()
        assert call("spx_session_seed", session, seed) is Status.WRONG_STATE
        succeed("spx_session_append", session, np.array(PROMPT), len(PROMPT))
        params = sampling(temperature=1.0, max_tokens=30, ignore_eos=1, **options)
        succeed("spx_session_begin", session, *begin_arguments(params))
        succeed("spx_session_generate", session, tokens, 30, one(), one(np.int32))
        succeed("spx_session_seed", session, seed)
        return tokens.tolist(), int(seed[0])

    first, second = answer(), answer(seed=flat.SEED_DRAWN)
    assert first[1] != second[1] and first[0] != second[0]
    assert answer(seed=first[1]) == first
    assert answer(seed=0)[1] == 0


def test_the_version_and_the_names_of_statuses() -> None:
    assert flat.spx_abi_version() == 1
    text, needed = np.zeros(40, np.uint8), one()
    for status in Status:
        succeed("spx_status_name", int(status), text, 40, needed)
        assert text.tobytes()[: needed[0]] == status.name.encode() + b"\0"
    for value in (-1, max(Status) + 1):
        assert call("spx_status_name", value, text, 40, needed) is Status.INVALID_ARGUMENT


def test_params_are_checked_by_one_law() -> None:
    defaults = {name: sampling()[name][0].item() for name in flat.PARAMS.names or () if name != "text"}
    assert _sampling_params(defaults, (), {}) == SamplingParams()
