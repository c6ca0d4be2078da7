"""The flat API on a real bundle: text in, tokens and text out, equal to the Pythonic way; and bundles it refuses."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import specruntime
from specruntime import flat
from specruntime.abi import Status
from tests.runtime.flat.flat_calls import (
    begin_arguments,
    call,
    generate,
    last_error,
    one,
    run_round,
    sampling,
    state_of,
    succeed,
)

PROMPT = "the quick brown fox jumps over the lazy dog. the quick brown fox"
MESSAGES = [{"role": "user", "content": "0 1 2 \u00e4 3"}]


def open_engine(path: Path) -> Status:
    data = str(path).encode()
    return call("spx_engine_open", data, len(data), None, 0, one())


@pytest.fixture(scope="module")
def engine(tiny_bundle: Path) -> Iterator[int]:
    path, handle, options = str(tiny_bundle).encode(), one(), np.zeros(1, flat.OPTIONS)
    succeed("spx_options_init", options, options.nbytes)
    options["threads"], options["verify"], options["provider"] = 1, 0, b"cpu"
    succeed("spx_engine_open", path, len(path), options, options.nbytes, handle)
    yield int(handle[0])
    succeed("spx_engine_close", int(handle[0]))


@pytest.fixture
def session(engine: int) -> Iterator[int]:
    handle = one()
    succeed("spx_session_open", engine, 1, handle)
    yield int(handle[0])
    succeed("spx_session_close", int(handle[0]))


def encode(engine: int, text: str) -> list[int]:
    """Size first, then the ids."""
    data, count = text.encode(), one()
    assert call("spx_text_encode", engine, data, len(data), None, 0, count) is Status.BUFFER_TOO_SMALL
    ids = np.zeros(int(count[0]), np.int64)
    succeed("spx_text_encode", engine, data, len(data), ids, len(ids), count)
    return [int(id) for id in ids]


def take_text(session: int) -> str:
    needed = one()
    assert call("spx_session_text", session, None, 0, needed) is Status.BUFFER_TOO_SMALL
    text = np.zeros(int(needed[0]), np.uint8)
    succeed("spx_session_text", session, text, len(text), needed)
    return text[:-1].tobytes().decode()


@pytest.mark.parametrize(
    "fields", [{}, {"temperature": 0.9, "top_p": 0.9, "seed": 5}], ids=["greedy", "sampled"]
)
def test_an_answer_equals_the_pythonic_one(
    tiny_bundle: Path, engine: int, session: int, fields: dict[str, float]
) -> None:
    prompt = np.array(encode(engine, PROMPT))
    succeed("spx_session_append", session, prompt, len(prompt))
    succeed("spx_session_begin", session, *begin_arguments(sampling(max_tokens=48, text=1, **fields)))
    tokens: list[int] = []
    text, finish = "", flat.Finish.NONE
    while finish is flat.Finish.NONE:
        delivered, finish = run_round(session)
        tokens += delivered
        text += take_text(session)
    with specruntime.open_bundle(tiny_bundle, verify=False) as bundle:
        codec = bundle.tokenizer
        assert codec is not None
        params = specruntime.SamplingParams(max_tokens=48, **fields)  # type: ignore[arg-type]
        plain = specruntime.complete(bundle.new_session(speculate=False), codec.encode(PROMPT), params, codec)
    assert (tuple(tokens), text, finish.name.lower()) == (plain.token_ids, plain.text, plain.finish_reason)
    stats = np.zeros(1, flat.STATS)
    succeed("spx_session_stats", session, stats, stats.nbytes)
    assert stats["accepted"][0] > 0 and stats["draft_calls"][0] > 0


def test_text_goes_there_and_back(engine: int) -> None:
    ids = np.array(encode(engine, "h\u00e9llo \u2603"))
    needed, text = one(), np.zeros(40, np.uint8)
    succeed("spx_text_decode", engine, ids, len(ids), text, 40, needed)
    assert text.tobytes()[: needed[0]] == "h\u00e9llo \u2603".encode() + b"\0"
    assert call("spx_text_decode", engine, np.array([10**9]), 1, text, 40, needed) is Status.INVALID_ARGUMENT
    succeed("spx_text_decode", engine, None, 0, text, 40, needed)
    assert needed[0] == 1


def test_a_conversation_is_rendered_by_the_bundle(tiny_bundle: Path, engine: int) -> None:
    data, ids, count = json.dumps(MESSAGES).encode(), np.zeros(100, np.int64), one()
    with specruntime.open_bundle(tiny_bundle, verify=False) as bundle:
        assert bundle.tokenizer is not None
        for prompt in (0, 1):
            succeed("spx_text_chat", engine, data, len(data), prompt, ids, 100, count)
            assert ids[: count[0]].tolist() == bundle.tokenizer.chat(MESSAGES, bool(prompt))


@pytest.mark.parametrize(
    "messages",
    [
        b"",
        b"{",
        b"{}",
        b"[1]",
        b'[{"role": 1}]',
        b"\xff",
        b'[{"role": "user", "content": "\\ud800"}]',
        b"[" * 100_000,
    ],
)
def test_what_is_no_conversation_is_refused(engine: int, messages: bytes) -> None:
    status = call("spx_text_chat", engine, messages, len(messages), 1, None, 0, one())
    assert status is Status.INVALID_ARGUMENT and last_error(engine)


def test_a_ban_on_every_token_is_survived(engine: int, session: int) -> None:
    info = np.zeros(1, flat.INFO)
    succeed("spx_engine_info", engine, info, info.nbytes)
    vocab = int(info["vocab_size"][0])
    succeed("spx_session_append", session, np.array([5]), 1)
    banned = begin_arguments(None, (), range(vocab), [-np.inf] * vocab)
    succeed("spx_session_begin", session, *banned)
    arguments = (session, np.zeros(5, np.int64), 5, one(), None, None, one(np.int32))
    assert call("spx_session_round", *arguments) is Status.INVALID_ARGUMENT
    assert state_of(session) is flat.SessionState.ANSWERING
    succeed("spx_session_begin", session, *begin_arguments())
    generate(session, 5)
    succeed("spx_session_begin", session, *banned)  # now a draft meets the ban first
    assert call("spx_session_round", *arguments) is Status.INVALID_ARGUMENT
    assert state_of(session) is flat.SessionState.ANSWERING
    succeed("spx_session_begin", session, *begin_arguments())
    generate(session, 5)


def test_bundles_that_cannot_be_opened_say_why(tiny_bundle: Path, tmp_path: Path) -> None:
    assert open_engine(tmp_path / "none") is Status.BUNDLE_INVALID
    assert "no bundle at" in last_error()
    copy = tmp_path / "copy.bundle"
    shutil.copytree(tiny_bundle, copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    (copy / "manifest.json").write_text(json.dumps(manifest | {"schema_version": 99}))
    assert open_engine(copy) is Status.BUNDLE_TOO_NEW
    (copy / "manifest.json").write_text(json.dumps(manifest))
    recipe = copy / "recipe.yaml"
    recipe.write_bytes(recipe.read_bytes().swapcase())
    assert open_engine(copy) is Status.BUNDLE_HASH_MISMATCH


def test_an_unknown_provider_is_refused(tiny_bundle: Path) -> None:
    path, options = str(tiny_bundle).encode(), np.zeros(1, flat.OPTIONS)
    options["provider"] = b"abacus"
    status = call("spx_engine_open", path, len(path), options, options.nbytes, one())
    assert status is Status.INVALID_ARGUMENT and "abacus" in last_error()


def test_without_the_libraries_the_api_loads_and_says_what_is_missing(tiny_bundle: Path) -> None:
    script = f"""
import sys
for name in ("onnxruntime", "tokenizers", "jinja2"):
    sys.modules[name] = None
import numpy as np
from specruntime import flat
path = {str(tiny_bundle)!r}.encode()
status = flat.spx_engine_open(path, len(path), None, 0, np.zeros(1, np.int64))
assert status is flat.Status.BACKEND_MISSING, status
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
