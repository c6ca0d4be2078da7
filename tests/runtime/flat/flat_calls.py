"""Calling the flat API in tests: each call is held to its row of the table, in status and in what it leaves behind."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from specruntime import flat
from specruntime.abi import ENTRIES, SessionState, outcomes
from specruntime.bundle import LoadedBundle
from specruntime.drafts import DraftSpec, NgramDraft
from specruntime.flat.records import HANDLES, SessionRecord
from specruntime.manifest.schema import GraphSpec
from specruntime.sampling.params import SamplingParams
from tests.runtime.scripted_engine import Language, ScriptedContext, scripted_manifest, target_spec
from tests.runtime.stacked_batch import StackedBatch

NGRAM = NgramDraft(k=4, max_n=3, min_n=1)
PROMPT = [5, 9, 2, 40, 7]
GREEDY = SamplingParams()


def one(dtype: type[np.generic] = np.int64) -> NDArray[Any]:
    """[1] memory for a result, filled with what no call writes."""
    return np.full(1, 77, dtype)


def call(name: str, *arguments: object) -> flat.Status:
    """The entry's status, after checking that its row allows it and tells the truth about the session afterwards."""
    entry = ENTRIES[name]
    record = _session(arguments[0]) if entry.handle is not None and arguments else None
    before = _standing(record)
    status = getattr(flat, name)(*arguments)
    assert type(status) is flat.Status
    allowed = outcomes(entry)
    assert status in allowed, f"{name} returned {status.name}, its row has {[s.name for s in allowed]}"
    after = allowed[status].after
    if after is None:
        assert _standing(record) == before, f"{name} returned {status.name} and changed the session"
    elif record is not None:
        assert _state(record) in after, f"{name} returned {status.name} and left {_state(record).name}"
    return status


def succeed(name: str, *arguments: object) -> None:
    status = call(name, *arguments)
    assert status is flat.Status.OK, f"{name}: {status.name}: {last_error()}"


def last_error(handle: int = 0) -> str:
    """The text of the last failed call, fetched as C does: size first."""
    needed = one()
    assert flat.spx_last_error(handle, None, 0, needed) is flat.Status.BUFFER_TOO_SMALL
    text = np.zeros(int(needed[0]), np.uint8)
    assert flat.spx_last_error(handle, text, len(text), needed) is flat.Status.OK
    assert text[-1] == 0
    return text[:-1].tobytes().decode()


def sampling(**fields: float) -> NDArray[np.void]:
    params = np.zeros(1, flat.PARAMS)
    succeed("spx_params_init", params, params.nbytes)
    for name, value in fields.items():
        params[name] = value
    return params


@dataclass
class ScriptedEngine:
    """An `Engine` over a language; keeps the contexts it made."""

    spec: GraphSpec
    language: Language
    contexts: list[ScriptedContext] = field(default_factory=list)
    closed: bool = False

    def new_context(self) -> ScriptedContext:
        self.contexts.append(ScriptedContext(self.spec, self.language))
        return self.contexts[-1]

    def new_batch(self, rows: int) -> StackedBatch:
        return StackedBatch(self.spec, rows, self.new_context)

    def close(self) -> None:
        self.closed = True


class Caller:
    """A caller of the flat API with one engine over a scripted language."""

    def __init__(
        self,
        patch: pytest.MonkeyPatch,
        draft: DraftSpec = NGRAM,
        *,
        eos: Sequence[int] = (),
        capacity: int = 64,
    ) -> None:
        self.language = Language()
        self.scripted = ScriptedEngine(target_spec(capacity=capacity), self.language)
        manifest = scripted_manifest(self.scripted.spec, draft, eos)
        bundle = LoadedBundle(manifest, Path("scripted"), self.scripted, None)
        patch.setattr("specruntime.flat.engines.open_bundle", lambda *_, **__: bundle)
        handle = one()
        succeed("spx_engine_open", b"scripted", 8, None, 0, handle)
        self.engine = int(handle[0])

    def open(self, speculate: int = 1) -> int:
        handle = one()
        succeed("spx_session_open", self.engine, speculate, handle)
        return int(handle[0])

    def begun(self, prompt: Sequence[int], params: NDArray[np.void] | None = None, **arrays: Any) -> int:
        """A session with an answer to the prompt begun."""
        session = self.open()
        succeed("spx_session_append", session, np.array(prompt), len(prompt))
        succeed("spx_session_begin", session, *begin_arguments(params, **arrays))
        return session


def begin_arguments(
    params: NDArray[np.void] | None = None,
    stop_ids: Sequence[int] = (),
    bias_ids: Sequence[int] = (),
    biases: Sequence[float] = (),
) -> tuple[object, ...]:
    """What `spx_session_begin` takes after the session."""
    return (
        params,
        0 if params is None else params.nbytes,
        np.array(stop_ids, np.int64),
        len(stop_ids),
        np.array(bias_ids, np.int64),
        np.array(biases, np.float64),
        len(biases),
    )


def run_round(session: int, room: int = 5) -> tuple[list[int], flat.Finish]:
    """The tokens of one round and how it finished."""
    tokens, count, finish = np.zeros(room, np.int64), one(), one(np.int32)
    succeed("spx_session_round", session, tokens, room, count, None, None, finish)
    return tokens[: int(count[0])].tolist(), flat.Finish(int(finish[0]))


def generate(session: int, room: int) -> tuple[list[int], flat.Finish]:
    tokens, count, finish = np.zeros(room, np.int64), one(), one(np.int32)
    succeed("spx_session_generate", session, tokens, room, count, finish)
    return tokens[: int(count[0])].tolist(), flat.Finish(int(finish[0]))


def committed(session: int) -> list[int]:
    """All tokens of the session, through the entries."""
    length, count = one(), one()
    succeed("spx_session_length", session, length)
    tokens = np.zeros(int(length[0]), np.int64)
    succeed("spx_session_tokens", session, 0, tokens, len(tokens), count)
    assert count[0] == length[0]
    return [int(token) for token in tokens]


def state_of(session: int) -> SessionState:
    state = one(np.int32)
    succeed("spx_session_state", session, state)
    return SessionState(int(state[0]))


def _session(handle: object) -> SessionRecord | None:
    record = HANDLES.find(handle) if isinstance(handle, int) else None
    return record if isinstance(record, SessionRecord) else None


def _state(record: SessionRecord) -> SessionState:
    return record.state if HANDLES.holds(record) else SessionState.CLOSED


def _standing(record: SessionRecord | None) -> object:
    return None if record is None else (_state(record), record.session.tokens.tolist())
