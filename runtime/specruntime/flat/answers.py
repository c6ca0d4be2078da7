"""Entries that make an answer: prompt in, parameters, rounds, and taking tokens back."""

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specruntime.abi import SEED_DRAWN, AcceptRule, Finish
from specruntime.abi.structs import PARAMS
from specruntime.errors import BufferTooSmall, InvalidArgument
from specruntime.flat.arguments import deliver, deliver_text
from specruntime.flat.entry import entry
from specruntime.flat.records import OpenEngine, SessionRecord
from specruntime.sampling.params import SamplingParams
from specruntime.stopping import FinishReason

Ids = NDArray[np.int64]


@entry
def spx_session_append(session: SessionRecord, ids: Ids, count: int) -> None:
    session.session.append(ids)
    session.forget_answer()


@entry
def spx_session_begin(
    session: SessionRecord,
    params: NDArray[np.void] | None,
    params_size: int,
    stop_ids: Ids,
    stop_count: int,
    bias_ids: Ids,
    biases: NDArray[np.float64],
    bias_count: int,
) -> None:
    bias = dict(zip(bias_ids.tolist(), biases.tolist(), strict=True))
    if len(bias) != bias_count:
        raise InvalidArgument("bias_ids names a token twice, expected each once")
    given = PARAMS.defaults() if params is None else params
    fields = {name: given[name][0].item() for name in given.dtype.names or ()}
    decode_text = _flag("text", fields.pop("text"))
    session.begin(_sampling_params(fields, tuple(stop_ids.tolist()), bias), decode_text=decode_text)


@entry
def spx_session_round(
    session: SessionRecord,
    tokens: Ids,
    capacity: int,
    count: Ids,
    proposed: Ids,
    accepted: Ids,
    finish: NDArray[np.int32],
) -> None:
    _require_room(session, capacity, count)
    round, delta = session.round()
    tokens[: len(delta.tokens)] = delta.tokens
    count[0], proposed[0], accepted[0] = len(delta.tokens), round.proposed, round.accepted
    finish[0] = _finish(delta.finish_reason)


@entry
def spx_session_generate(
    session: SessionRecord, tokens: Ids, capacity: int, count: Ids, finish: NDArray[np.int32]
) -> None:
    _require_room(session, capacity, count)
    filled, logprobs = 0, None
    count[0], finish[0] = 0, Finish.NONE
    try:
        while finish[0] == Finish.NONE and capacity - filled >= session.room_needed:
            _, delta = session.round()
            tokens[filled : filled + len(delta.tokens)] = delta.tokens
            filled += len(delta.tokens)
            if session.logprobs is not None:
                logprobs = [*(logprobs or ()), *session.logprobs]
            count[0], finish[0] = filled, _finish(delta.finish_reason)
    finally:  # what was delivered before a round that fails is delivered
        session.logprobs = logprobs


@entry
def spx_session_rewind(session: SessionRecord, length: int) -> None:
    session.session.rewind(length)
    session.forget_answer()


def _require_room(session: SessionRecord, capacity: int, count: Ids) -> None:
    """Before anything runs: what a round delivers cannot be delivered twice."""
    needed = session.room_needed
    if capacity < needed:
        count[0] = needed
        raise BufferTooSmall(f"tokens has room for {capacity} ids, the next round may deliver {needed}")


def _sampling_params(
    fields: dict[str, float | int], stop_token_ids: tuple[int, ...], bias: dict[int, float]
) -> SamplingParams:
    """Return the structure's fields with C's spellings of "none" taken back; `SamplingParams` checks the rest."""
    if fields["accept"] not in tuple(AcceptRule):
        raise InvalidArgument(f"accept is {fields['accept']}, expected one of SPX_ACCEPT_*")
    if fields["logprobs"] < -1:
        raise InvalidArgument(f"logprobs is {fields['logprobs']}, expected -1 (none) or more")
    changed = {
        "accept": AcceptRule(int(fields["accept"])).name.lower(),
        "ignore_eos": _flag("ignore_eos", fields["ignore_eos"]),
        "logprobs": None if fields["logprobs"] == -1 else fields["logprobs"],
        "max_tokens": fields["max_tokens"] or None,
        "seed": None if fields["seed"] == SEED_DRAWN else fields["seed"],
    }
    return SamplingParams(**fields | changed, stop_token_ids=stop_token_ids, logit_bias=bias)  # type: ignore[arg-type]


def _flag(name: str, value: float) -> bool:
    if value not in (0, 1):
        raise InvalidArgument(f"{name} is {value}, expected 0 or 1")
    return value == 1


def _finish(reason: FinishReason | None) -> Finish:
    return Finish.NONE if reason is None else Finish[reason.upper()]


@entry
def spx_text_encode(engine: OpenEngine, text: str, length: int, ids: Ids, capacity: int, count: Ids) -> None:
    deliver(engine.codec.encode(text), ids, count, "ids")


@entry
def spx_text_chat(
    engine: OpenEngine, messages: str, length: int, prompt: int, ids: Ids, capacity: int, count: Ids
) -> None:
    if prompt not in (0, 1):
        raise InvalidArgument(f"prompt is {prompt}, expected 0 or 1")
    deliver(engine.codec.chat(_parse(messages), prompt == 1), ids, count, "ids")


@entry
def spx_text_decode(
    engine: OpenEngine,
    ids: Ids,
    count: int,
    text: NDArray[np.uint8],
    capacity: int,
    needed: NDArray[np.int64],
) -> None:
    vocab_size = engine.bundle.manifest.target.vocab_size
    if ids.size and not 0 <= ids.min() <= ids.max() < vocab_size:
        raise InvalidArgument(f"ids lie between {ids.min()} and {ids.max()}, expected 0 to {vocab_size - 1}")
    deliver_text(engine.codec.decode(ids.tolist()), text, needed)


def _parse(messages: str) -> list[dict[str, Any]]:
    try:
        parsed = json.loads(messages)
        json.dumps(parsed, ensure_ascii=False).encode()  # half of an escaped surrogate pair is not text
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"messages are not valid JSON text: {error}") from error
    if not isinstance(parsed, list) or not all(isinstance(message, dict) for message in parsed):
        raise InvalidArgument('messages are no list of objects, expected [{"role": ..., "content": ...}]')
    return parsed
