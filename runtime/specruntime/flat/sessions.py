"""Entries of sessions that run no engine: their lifetime, and reading what they hold."""

import numpy as np
from numpy.typing import NDArray

from specruntime.errors import BufferTooSmall, InvalidArgument, WrongState
from specruntime.flat.arguments import deliver, deliver_text
from specruntime.flat.entry import entry
from specruntime.flat.records import HANDLES, OpenEngine, SessionRecord

Ids = NDArray[np.int64]


@entry
def spx_session_open(engine: OpenEngine, speculate: int, session: Ids) -> None:
    if speculate not in (0, 1):
        raise InvalidArgument(f"speculate is {speculate}, expected 0 or 1")
    session[0] = HANDLES.add(engine.open_session(speculate == 1))


@entry
def spx_session_reset(session: SessionRecord) -> None:
    session.session.reset()
    session.forget_answer()


@entry
def spx_session_close(session: SessionRecord) -> None:
    session.close()
    HANDLES.drop(session)


@entry
def spx_session_state(session: SessionRecord, state: NDArray[np.int32]) -> None:
    state[0] = session.state


@entry
def spx_session_length(session: SessionRecord, length: Ids) -> None:
    length[0] = session.session.length


@entry
def spx_session_tokens(session: SessionRecord, start: int, tokens: Ids, capacity: int, count: Ids) -> None:
    length = session.session.length
    if not 0 <= start <= length:
        raise InvalidArgument(f"start is {start}, expected 0 to the length, {length}")
    deliver(session.session.tokens[start:], tokens, count, "tokens")


@entry
def spx_session_logprobs(
    session: SessionRecord,
    logprobs: NDArray[np.float64],
    capacity: int,
    count: Ids,
    top_ids: Ids,
    top_logprobs: NDArray[np.float64],
    top_capacity: int,
    top_count: Ids,
) -> None:
    rows = session.logprobs
    if rows is None:
        raise WrongState("no log-probabilities: begin with `logprobs` of 0 or more, then run a round")
    top = [pair for row in rows for pair in row.top]
    count[0], top_count[0] = len(rows), len(top)
    if top_capacity and top_capacity < len(top):
        raise BufferTooSmall(f"top_ids has room for {top_capacity} elements, {len(top)} are needed")
    deliver([row.logprob for row in rows], logprobs, count, "logprobs")
    if top_capacity:
        top_ids[: len(top)] = [token for token, _ in top]
        top_logprobs[: len(top)] = [logprob for _, logprob in top]


@entry
def spx_session_text(
    session: SessionRecord, text: NDArray[np.uint8], capacity: int, needed: NDArray[np.int64]
) -> None:
    if session.text is None:
        raise WrongState("the answer is not decoded: begin it with `text` = 1")
    deliver_text(session.text, text, needed)
    session.text = ""


@entry
def spx_session_seed(session: SessionRecord, seed: NDArray[np.uint64]) -> None:
    if not session.session.answers:
        raise WrongState("no answer has begun in this session, so it has no seed: begin one")
    seed[0] = session.session.seed or 0


@entry
def spx_session_stats(session: SessionRecord, stats: NDArray[np.void], stats_size: int) -> None:
    figures = session.session.stats
    for name in (
        "prefills",
        "rounds",
        "tokens",
        "discarded",
        "proposed",
        "evaluated",
        "accepted",
        "acceptance_length",
        "prefill_seconds",
        "draft_seconds",
        "verify_seconds",
        "accept_seconds",
        "round_seconds",
    ):
        stats[name] = getattr(figures, name)
    stats["target_calls"] = sum(figures.target.calls.values())
    stats["draft_calls"] = sum(figures.draft.calls.values())
    stats["target_seconds"] = figures.target.seconds
    stats["draft_engine_seconds"] = figures.draft.seconds
