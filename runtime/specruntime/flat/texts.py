"""Entries for text in and out, on an engine: they keep no state of a conversation."""

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specruntime.errors import InvalidArgument
from specruntime.flat.entry import entry
from specruntime.flat.memory import deliver, deliver_text
from specruntime.flat.records import EngineRecord

Ids = NDArray[np.int64]


@entry
def spx_text_encode(
    engine: EngineRecord, text: str, length: int, ids: Ids, capacity: int, count: Ids
) -> None:
    deliver(engine.codec.encode(text), ids, count, "ids")


@entry
def spx_text_chat(
    engine: EngineRecord, messages: str, length: int, prompt: int, ids: Ids, capacity: int, count: Ids
) -> None:
    if prompt not in (0, 1):
        raise InvalidArgument(f"prompt is {prompt}, expected 0 or 1")
    deliver(engine.codec.chat(_parse(messages), prompt == 1), ids, count, "ids")


@entry
def spx_text_decode(
    engine: EngineRecord,
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
        json.dumps(parsed, ensure_ascii=False).encode()  # half of an escaped surrogate pair is no text
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"messages are no JSON of text: {error}") from error
    if not isinstance(parsed, list) or not all(isinstance(message, dict) for message in parsed):
        raise InvalidArgument('messages are no list of objects, expected [{"role": ..., "content": ...}]')
    return parsed
