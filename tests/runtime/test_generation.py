"""An answer ends where plain decoding ends, whatever the rounds looked like, and so does the session."""

import codecs
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from specruntime.drafts import DraftSpec, ModelDraft, NgramDraft, NoneDraft
from specruntime.errors import CapacityExceeded, EmptyPrompt, InvalidArgument, SessionPoisoned, WrongState
from specruntime.generation import Answer, Completion, complete, generate
from specruntime.sampling.params import SamplingParams
from tests.runtime.scripted_engine import (
    VOCAB,
    Bench,
    Language,
    TableDraft,
    draft_spec,
    reference_decode,
    target_spec,
)

PROMPT = [5, 9, 2, 40, 7]
LONG = target_spec(verify=(5,), capacity=200)
ANSWER = reference_decode(Language(), PROMPT, 40, SamplingParams())


class ByteCodec:
    """Tokens are one to three bytes of UTF-8; some are halves of a character."""

    def __init__(self) -> None:
        halves = {0: b"\xc3", 1: b"\xa9", 2: b"ab"}
        self.bytes = [halves.get(token % 5, bytes([97 + token % 26])) for token in range(VOCAB)]

    def text(self, ids: Iterable[int]) -> str:
        return b"".join(self.bytes[token] for token in ids).decode("utf-8", "replace")

    def stream(self, prompt: Sequence[int] = ()) -> "ByteStream":
        return ByteStream(self)


class ByteStream:
    def __init__(self, codec: ByteCodec) -> None:
        self._codec = codec
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, ids: Iterable[int]) -> str:
        return "".join(self._decoder.decode(self._codec.bytes[token]) for token in ids)

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


CODEC = ByteCodec()


def speculating(wrong: set[int] = frozenset(), eos: tuple[int, ...] = ()) -> Bench:  # type: ignore[assignment]
    return Bench(target=LONG, proposer=TableDraft(len(PROMPT), ANSWER, 4, wrong), eos=eos)


def end_of(answer: list[int], params: SamplingParams, eos: tuple[int, ...] = ()) -> tuple[int, str]:
    """Tokens delivered and the finish reason, by the definition of both."""
    for count in range(1, len(answer) + 1):
        if answer[count - 1] in {*params.stop_token_ids, *eos}:
            return count, "stop"
        if any(stop in CODEC.text(answer[:count]) for stop in params.stop):
            return count, "stop"
        if count == params.max_tokens:
            return count, "length"
    raise AssertionError("the answer is too short for the test")


@pytest.mark.parametrize("by", ["stop id", "end of sequence"])
def test_every_stop_position_against_every_cap(by: str) -> None:
    for stop, cap in product(range(16), range(1, 18)):
        token = ANSWER[stop]
        eos = (token,) if by == "end of sequence" else ()
        params = SamplingParams(max_tokens=cap, stop_token_ids=() if eos else (token,), logprobs=1)
        count, reason = end_of(ANSWER, params, eos)
        plain = complete(Bench(target=LONG, eos=eos).session, PROMPT, params, CODEC)
        bench = speculating(eos=eos)
        done = complete(bench.session, PROMPT, params, CODEC)
        assert done.token_ids == plain.token_ids == tuple(ANSWER[:count])
        assert done.finish_reason == plain.finish_reason == reason
        assert done.logprobs == plain.logprobs and done.logprobs is not None and len(done.logprobs) == count
        assert done.text == plain.text == CODEC.text(ANSWER[: count - (reason == "stop")])
        assert bench.session.tokens.tolist() == PROMPT + ANSWER[:count]


@pytest.mark.parametrize("wrong", [set(), {2}, {5, 6}, {1, 3, 8}])
@pytest.mark.parametrize("characters", [1, 2, 4, 7])
def test_stop_strings_end_the_text_before_them_at_every_offset(characters: int, wrong: set[int]) -> None:
    text = CODEC.text(ANSWER)
    for offset in range(24):
        stop = text[offset : offset + characters]
        for cap in (3, 6, 7, 38):
            params = SamplingParams(max_tokens=cap, stop=(stop, "never said"))
            count, reason = end_of(ANSWER, params)
            bench = speculating(wrong)
            deltas = list(generate(bench.session, PROMPT, params, CODEC))
            shown = "".join(delta.text for delta in deltas)
            plain = complete(Bench(target=LONG).session, PROMPT, params, CODEC)
            assert shown == plain.text
            assert [t for delta in deltas for t in delta.tokens] == list(plain.token_ids)
            assert deltas[-1].finish_reason == plain.finish_reason
            if (
                "\ufffd" not in stop
            ):  # the halves of a character arrive later than the naive decode shows them
                whole = CODEC.text(ANSWER[:count])
                assert (len(plain.token_ids), plain.finish_reason) == (count, reason)
                assert shown == (whole[: whole.index(stop)] if reason == "stop" else whole)


def test_streamed_text_never_has_to_be_taken_back() -> None:
    whole = CODEC.text(ANSWER)
    for offset in range(20):
        params = SamplingParams(max_tokens=38, stop=(whole[offset : offset + 5],))
        streamed = ""
        for delta in generate(speculating().session, PROMPT, params, CODEC):
            streamed += delta.text
            assert whole.startswith(streamed.rstrip("\ufffd"))
            assert params.stop[0] not in streamed


def test_the_last_delta_and_only_it_says_why() -> None:
    deltas = list(generate(speculating().session, PROMPT, SamplingParams(max_tokens=12)))
    assert [delta.finish_reason for delta in deltas] == [None] * (len(deltas) - 1) + ["length"]
    assert [len(delta.tokens) for delta in deltas] == [1, 5, 5, 1]
    assert all(delta.text == "" and delta.logprobs is None for delta in deltas)


DRAFTS: list[DraftSpec] = [
    NoneDraft(),
    NgramDraft(k=4, max_n=2, min_n=1),
    ModelDraft(k=4, graph=draft_spec()),
]


@pytest.mark.parametrize("draft", DRAFTS, ids=lambda draft: draft.kind)
def test_a_full_cache_ends_the_answer(draft: DraftSpec) -> None:
    for length in range(56, 65):
        bench = Bench(draft, target=target_spec(capacity=64))
        prompt = list(range(length))
        done = complete(bench.session, prompt, SamplingParams(), CODEC)
        assert done.finish_reason == "capacity"
        assert list(done.token_ids) == reference_decode(bench.language, prompt, 65 - length, SamplingParams())
        assert done.text == CODEC.text(done.token_ids)
        with pytest.raises(CapacityExceeded):
            complete(bench.session, [1], SamplingParams())


def test_the_cap_wins_over_a_full_cache_at_the_same_token() -> None:
    bench = Bench(target=target_spec(capacity=64))
    assert complete(bench.session, range(60), SamplingParams(max_tokens=5)).finish_reason == "length"


@pytest.mark.parametrize("kind", ["none", "ngram", "model", "table"])
def test_a_conversation_equals_clean_runs_of_its_turns(kind: str) -> None:
    drafts: dict[str, DraftSpec] = {
        "ngram": NgramDraft(k=4, max_n=2, min_n=1),
        "model": ModelDraft(k=4, graph=draft_spec(capacity=200)),
    }
    table = TableDraft(len(PROMPT), ANSWER, 4, {3}) if kind == "table" else None
    bench = Bench(drafts.get(kind), target=LONG, proposer=table, draft_language=Language(drift=2))
    history: list[int] = []
    for turn, stop in enumerate((ANSWER[6], 1, 2)):
        params = SamplingParams(temperature=0.5 * turn, seed=turn, max_tokens=15, stop_token_ids=(stop,))
        prompt = [token + turn for token in PROMPT]
        done = complete(bench.session, prompt, params)
        clean = complete(Bench(target=LONG).session, history + prompt, params)
        assert done.token_ids == clean.token_ids and done.finish_reason == clean.finish_reason
        history += prompt + list(done.token_ids)
        assert bench.session.tokens.tolist() == history


def test_an_answer_cut_inside_a_run_counts_what_it_delivered() -> None:
    bench = speculating()
    done = complete(bench.session, PROMPT, SamplingParams(stop_token_ids=(ANSWER[2],)))
    assert done.token_ids == tuple(ANSWER[: ANSWER.index(ANSWER[2]) + 1])
    assert done.stats.tokens - done.stats.discarded == len(done.token_ids)
    assert done.stats.as_dict()["new_tokens"] == len(done.token_ids)
    assert done.stats.discarded == 3, "a prefill token and a round of five, cut after three"


def test_min_tokens_holds_back_the_end() -> None:
    params = SamplingParams(min_tokens=9, max_tokens=30)
    expected = reference_decode(Language(), PROMPT, 30, params, eos=(ANSWER[3], ANSWER[5]))
    bench = Bench(ModelDraft(k=4, graph=draft_spec(capacity=200)), target=LONG, eos=(ANSWER[3], ANSWER[5]))
    done = complete(bench.session, PROMPT, params)
    assert len(done.token_ids) >= 9 and list(done.token_ids) == expected[: len(done.token_ids)]
    assert not {ANSWER[3], ANSWER[5]} & set(done.token_ids[:9])


def test_bad_requests_leave_the_session_as_it_was() -> None:
    session = Bench(target=LONG).session
    complete(session, PROMPT, SamplingParams(max_tokens=3))
    before = session.tokens.tolist()
    with pytest.raises(EmptyPrompt):
        generate(session, [], SamplingParams())
    with pytest.raises(InvalidArgument, match="tokenizer"):
        generate(session, PROMPT, SamplingParams(stop=("x",)))
    with pytest.raises(InvalidArgument, match="logprobs"):
        generate(session, PROMPT, SamplingParams(logprobs=VOCAB + 1))
    with pytest.raises(CapacityExceeded):
        generate(session, [1] * 200, SamplingParams())
    assert session.tokens.tolist() == before


def test_a_failing_engine_ends_the_stream_with_its_error() -> None:
    bench = speculating()
    deltas = generate(bench.session, PROMPT, SamplingParams(max_tokens=30))
    next(deltas)
    bench.target.failing = lambda: True
    with pytest.raises(Exception, match="scripted failure"):
        next(deltas)
    with pytest.raises(SessionPoisoned):
        complete(bench.session, PROMPT, SamplingParams())


def always(token: int, **options: Any) -> SamplingParams:
    return SamplingParams(logit_bias={token: 1000.0}, **options)


@pytest.mark.parametrize("stop", ["\ufffd", "b\ufffd"])
@pytest.mark.parametrize("end", ["length", "capacity", "eos"])
def test_half_a_character_left_at_the_end_passes_the_stop_strings(stop: str, end: str) -> None:
    """Token 90 is half a character, token 91 a stop id; the text before it may begin the stop string."""
    codec = ByteCodec()
    codec.bytes[90] = b"b\xc3"
    prompt = list(range(64)) if end == "capacity" else PROMPT
    bench = Bench(target=target_spec(capacity=64))
    bench.session.append(prompt)
    params = always(90, stop=(stop,), max_tokens=None if end == "capacity" else 1)
    if end == "eos":
        params = always(90, stop=(stop,), stop_token_ids=(91,))
    bench.session.begin(params)
    answer = Answer(bench.session, params, codec)
    deltas = [answer.deliver(bench.session.round())]
    if end == "eos":
        assert deltas[0].finish_reason is None
        round = bench.session.round()
        deltas.append(answer.deliver(replace(round, tokens=(91,))))
    assert "".join(delta.text for delta in deltas) == "b"[: len("b\ufffd") - len(stop)]
    assert deltas[-1].finish_reason == "stop"


def test_half_a_character_after_a_stop_string_is_not_shown() -> None:
    codec = ByteCodec()
    codec.bytes[90] = b"ab\xc3"
    done = complete(Bench(target=LONG).session, PROMPT, always(90, stop=("b",), max_tokens=3), codec)
    assert (done.text, done.token_ids, done.finish_reason) == ("a", (90,), "stop")


def test_an_abandoned_answer_does_not_go_on_inside_the_next() -> None:
    session = Bench(target=LONG).session
    first = generate(session, PROMPT, SamplingParams(max_tokens=9))
    next(first)
    second = generate(session, [4], SamplingParams(max_tokens=3))
    next(second)
    before = session.tokens.tolist()
    with pytest.raises(WrongState, match="begun another answer"):
        next(first)
    assert session.tokens.tolist() == before
    assert [delta.finish_reason for delta in second] == [None, "length"]


def test_a_round_of_the_next_answer_is_not_delivered_by_the_one_before() -> None:
    session = Bench(target=LONG).session
    session.append(PROMPT)
    session.begin(SamplingParams())
    answer = Answer(session, SamplingParams(), None)
    session.begin(SamplingParams())
    with pytest.raises(WrongState, match="begun another answer"):
        answer.deliver(session.round())


def test_a_completion_without_logprobs_has_none() -> None:
    done: Completion = complete(speculating().session, PROMPT, SamplingParams(max_tokens=2))
    assert done.logprobs is None and done.text == ""
