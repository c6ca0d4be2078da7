"""What a client may not do to a server: each limit has its status, and a client that leaves frees its slot."""

import json
import logging
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specruntime import SamplingParams
from specruntime.errors import InvalidArgument
from specruntime.server.logs import log_to
from specruntime.server.settings import Settings, read_api_keys
from specruntime.serving import Stream, Work
from tests.runtime.server.conftest import Running, Serve, wait_for
from tests.runtime.server.http import PROMPT, ask, call, completion, request_bytes, require_error
from tests.scripted_clock import CLOCK


class Hold:
    """Keeps a server's engine after `free` runs until it is released."""

    def __init__(self, server: Running, *, free: int = 0) -> None:
        self.runs, self._free = 0, free
        self._open = threading.Event()
        assert server.engine is not None
        server.engine.failing = self._pass

    def _pass(self, context: int) -> bool:
        self.runs += 1
        assert self.runs <= self._free or self._open.wait(120)
        return False

    def release(self) -> None:
        self._open.set()


def occupy(server: Running, requests: int = 1) -> list[Stream]:
    """Requests from inside, the first of them in the slot."""
    work = Work(np.array(PROMPT), SamplingParams(max_tokens=4))
    streams = [Stream(server.scheduler, work) for _ in range(requests)]
    wait_for(lambda: server.scheduler.occupancy().active == 1)
    return streams


def test_bodies_are_bounded_in_bytes(serve: Serve) -> None:
    server = serve(max_body_bytes=400)
    assert ask(server)[0] == 200
    require_error(ask(server, user="x" * 256, stop=["y" * 200]), 413)
    head = request_bytes(b"", length=10**9)
    with server.connect() as connection:  # refused by what it claims, before it sends
        connection.sendall(head)
        assert b" 413 " in connection.recv(4096).split(b"\r\n")[0]
    chunk = b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
    with server.connect() as connection:  # and by what it sends, when it claims nothing
        connection.sendall(
            chunk + b"Transfer-Encoding: chunked\r\n\r\n" + b"200\r\n" + b" " * 512 + b"\r\n0\r\n\r\n"
        )
        assert b" 413 " in connection.recv(4096).split(b"\r\n")[0]


def test_a_body_that_does_not_come_is_not_waited_for(serve: Serve) -> None:
    server = serve(read_seconds=3600)
    with server.connect() as connection:
        connection.sendall(request_bytes(b'{"model"', length=100))
        wait_for(lambda: any(protocol.cycle is not None for protocol in server.connections))
        server.pass_time(3601)
        assert b" 408 " in connection.recv(4096).split(b"\r\n")[0]


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"\xff\xfe", b'{"max_tokens": NaN}', b'{"seed": ' + b"9" * 5000 + b"}", b"[" * 100_000],
    ids=["empty", "cut", "no-utf8", "nan", "digits", "nested"],
)
def test_what_is_no_json_is_refused(serve: Serve, body: bytes) -> None:
    server = serve()
    require_error(call(server, "POST", "/v1/completions", body), 400)
    assert ask(server)[0] == 200


def test_bodies_of_other_types_are_refused(serve: Serve) -> None:
    """A form of another site can send text/plain and no application/json without asking."""
    server = serve()
    body = json.dumps(completion()).encode()
    answer = call(server, "POST", "/v1/completions", body, {"Content-Type": "text/plain"})
    require_error(answer, 415)
    assert "access-control-allow-origin" not in answer[2]


def test_values_and_names_that_are_not_known_are_refused(serve: Serve) -> None:
    server = serve()
    assert "did you mean 'max_tokens'" in require_error(ask(server, max_token=3), 422)["message"]
    assert require_error(ask(server, temperature="hot"), 422)["param"] == "temperature"
    assert require_error(ask(server, prompt=3), 422)["param"] == "prompt", "no names of types"
    messages = [{"role": "user", "content": [{"type": "text", "text": "x", "url": "y"}]}]
    refusal = require_error(
        call(server, "POST", "/v1/chat/completions", {"model": "scripted", "messages": messages}), 422
    )
    assert refusal["param"] == "messages.0.content.0.url"
    assert require_error(ask(server, max_token=3), 422)["param"] == "max_token"
    refusal = require_error(ask(server, suffix="x"), 422)
    reason = "answers are not written to end before a text"
    assert refusal["message"] == f'suffix: found "x", expected null or ""; {reason}'
    assert refusal["param"] == "suffix"
    others: list[dict[str, Any]] = [
        {"n": 17}, {"n": 0}, {"best_of": 17}, {"echo": 1}, {"suffix": "x"}, {"stop": [""]}, {"prompt": []},
    ]  # fmt: skip
    for fields in others:
        require_error(ask(server, **fields), 422)
    assert require_error(ask(server, prompt=[5000]), 400)["code"] == "invalid_value"
    assert require_error(ask(server, prompt=[1] * 65), 400)["code"] == "context_length_exceeded"
    require_error(ask(server, prompt="text without a tokenizer"), 400)
    require_error(ask(server, stop="text"), 400)
    require_error(ask(server, logit_bias={"5000": 1}), 400)
    require_error(ask(server, stream_options={"include_usage": True}), 400)
    both = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4, "max_completion_tokens": 5}
    answer = call(server, "POST", "/v1/chat/completions", {"model": "scripted", **both})
    assert "give one of them" in require_error(answer, 400)["message"]
    assert require_error(ask(server, model="other"), 404)["code"] == "model_not_found"


def test_a_request_without_a_model_is_for_the_one_that_is_served(serve: Serve) -> None:
    server = serve()
    status, body, _ = call(server, "POST", "/v1/completions", {"prompt": PROMPT, "max_tokens": 2})
    assert status == 200 and body["model"] == "scripted"


def test_prompts_are_bounded_in_tokens(serve: Serve) -> None:
    server = serve(max_prompt_tokens=4)
    assert "at most 4" in require_error(ask(server), 400)["message"]


def test_paths_and_methods_have_errors_of_the_same_shape(serve: Serve) -> None:
    server = serve()
    refusal = require_error(call(server, "GET", "/v1/nothing"), 404)
    assert refusal["message"] == "'/v1/nothing' is not a path here: GET /openapi.json lists them"
    require_error(call(server, "GET", "/v1/models/other"), 404)
    status, body, headers = call(server, "GET", "/v1/completions")
    refusal = require_error((status, body, headers), 405)
    assert refusal["message"] == "'/v1/completions' does not take GET, allowed: POST"
    assert headers["allow"] == "POST"


def test_keys_open_v1_and_nothing_else_needs_one(serve: Serve) -> None:
    server = serve(api_keys=("first", "second"))
    for key in ("", "Bearer", "Bearer wrong", "Basic first", "Bearer \xe9"):
        answer = call(server, "GET", "/v1/models", headers={"Authorization": key})
        require_error(answer, 401)
        assert answer[2]["www-authenticate"] == "Bearer"
    for key in ("Bearer first", "bearer second"):
        assert call(server, "GET", "/v1/models", headers={"Authorization": key})[0] == 200
    for path in ("/", "/health", "/ready", "/metrics", "/openapi.json"):
        assert call(server, "GET", path)[0] == 200
    assert Settings("m", api_keys=("a",)).admits("a") and not Settings("m", api_keys=("a",)).admits("")


def test_without_a_key_no_body_is_read(serve: Serve) -> None:
    server = serve(api_keys=("first",), max_body_bytes=100)
    for body in (b"{", b"x" * 1000):
        require_error(call(server, "POST", "/v1/completions", body), 401)
    with server.connect() as connection:
        connection.sendall(request_bytes(b"", length=50))
        assert b" 401 " in connection.recv(4096).split(b"\r\n")[0]


def test_what_can_be_read_has_a_head_and_the_document_does_not_repeat_it(serve: Serve) -> None:
    server = serve()
    for path in ("/", "/health", "/ready", "/metrics", "/openapi.json", "/v1/models", "/v1/models/scripted"):
        status, body, headers = call(server, "HEAD", path, headers={"Accept": "text/plain"})
        assert (status, body) == (200, "") and int(headers["content-length"]) > 0
    described = call(server, "GET", "/openapi.json")[1]
    assert {method for path in described["paths"].values() for method in path} == {"get", "post"}
    assert "HTTPValidationError" not in described["components"]["schemas"]


def test_key_files_are_read_line_by_line(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# of the team\nfirst\n\n  second \n")
    assert read_api_keys(file) == ("first", "second")
    for text in ("", "# none\n", "k\xe9y\n"):
        file.write_text(text)
        with pytest.raises(InvalidArgument, match="one"):
            read_api_keys(file)
    with pytest.raises(InvalidArgument, match=r"nosuch cannot be read: No such file.*; expected API keys"):
        read_api_keys(tmp_path / "nosuch")


def test_a_full_queue_is_429_and_says_when_to_come_back(serve: Serve) -> None:
    server = serve(slots=1, queue_limit=1)
    hold = Hold(server)
    streams = occupy(server, 2)
    answer = ask(server)
    hold.release()
    assert require_error(answer, 429)["code"] == "queue_full"
    assert answer[2]["retry-after"] == "1"
    assert all(list(stream)[-1].last for stream in streams)


def test_a_request_whose_time_is_over_is_504(serve: Serve) -> None:
    server = serve(slots=1, request_seconds=3600)
    hold = Hold(server)
    streams = occupy(server)
    with ThreadPoolExecutor(1) as client:
        answer = client.submit(ask, server)
        wait_for(lambda: server.scheduler.occupancy().queued == 1)
        CLOCK.advance(3601)
        hold.release()
        assert require_error(answer.result(120), 504)["code"] == "timeout"
    assert list(streams[0])[-1].last


def test_time_that_is_over_in_mid_stream_is_the_last_event(serve: Serve) -> None:
    server = serve(slots=1, request_seconds=3600, capacity=4000)
    assert server.engine is not None
    server.engine.failing = lambda context: bool(CLOCK.advance(100))  # type: ignore[func-returns-value]
    status, text, _ = ask(server, stream=True, max_tokens=3000)
    events = [line for line in text.split("\n\n") if line]
    assert status == 200 and len(events) > 1
    assert json.loads(events[-1].removeprefix("data: "))["error"]["code"] == "timeout"


def test_a_draining_server_is_503(serve: Serve) -> None:
    server = serve()
    server.scheduler.stop_accepting()
    assert require_error(ask(server), 503)["code"] == "draining"
    assert call(server, "GET", "/ready")[:2] == (503, {"status": "draining"})
    assert call(server, "GET", "/health")[0] == 200


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_slot(serve: Serve, stream: bool) -> None:
    server = serve(slots=1, capacity=8000)
    hold = Hold(server, free=20)
    body = json.dumps(completion(stream=stream, max_tokens=7000)).encode()
    connection = server.connect()
    connection.sendall(request_bytes(body))
    wait_for(lambda: server.scheduler.occupancy().active == 1)
    if stream:
        assert b"data: " in connection.recv(4096) + connection.recv(4096)
    connection.close()
    ended, active = server.scheduler.totals.ended, server.scheduler._active
    wait_for(lambda: (held := active.get(0)) is None or held.cancelled)
    hold.release()
    wait_for(lambda: ended["Cancelled"] == 1)
    assert server.scheduler.totals.tokens < 7000
    assert ask(server)[0] == 200


def test_a_client_that_leaves_while_it_waits_leaves_the_queue(serve: Serve) -> None:
    server = serve(slots=1)
    hold = Hold(server)
    streams = occupy(server)
    connection = server.connect()
    connection.sendall(request_bytes(json.dumps(completion()).encode()))
    wait_for(lambda: server.scheduler.occupancy().queued == 1)
    connection.close()
    wait_for(lambda: server.scheduler._waiting[0].cancelled)
    hold.release()
    assert list(streams[0])[-1].last
    wait_for(lambda: server.scheduler.totals.ended["Cancelled"] == 1)


def test_a_client_that_does_not_read_is_cut_off_and_holds_no_slot(serve: Serve) -> None:
    server = serve(slots=1, capacity=60000, write_seconds=3600)
    with server.connect() as connection:
        body = json.dumps(
            completion(stream=True, include_authors=True, max_tokens=4000, logprobs=20)
        ).encode()
        connection.sendall(request_bytes(body))
        wait_for(lambda: ended_after(server, 1900))
        assert ask(server)[0] == 200
        received = b""
        while piece := connection.recv(1 << 20):
            received += piece
    assert b"[DONE]" not in received


def ended_after(server: Running, seconds: float) -> bool:
    """Whether an answer has ended when some more time has passed."""
    server.pass_time(seconds)
    return server.scheduler.totals.ended.total() == 1


def test_an_engine_failure_is_500_without_its_details_and_the_next_request_is_answered(serve: Serve) -> None:
    server = serve(slots=1)
    assert server.engine is not None
    failures = [True]
    server.engine.failing = lambda context: bool(failures and failures.pop())
    assert "scripted" not in require_error(ask(server), 500)["message"]
    assert ask(server)[0] == 200


@pytest.fixture
def lines() -> Iterator[StringIO]:
    """What the server logs."""
    loggers = [logging.getLogger(name) for name in ("specruntime", "uvicorn")]
    kept = [(logger.handlers, logger.propagate, logger.level) for logger in loggers]
    told = StringIO()
    log_to(told)
    yield told
    for logger, (handlers, propagate, level) in zip(loggers, kept, strict=True):
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)


def test_an_engine_failure_in_mid_stream_is_the_last_event_and_in_the_log(
    serve: Serve, lines: StringIO
) -> None:
    server = serve(slots=1)
    assert server.engine is not None
    runs: list[int] = []

    def fail(context: int) -> bool:
        runs.append(context)
        return len(runs) == 4

    server.engine.failing = fail
    status, text, _ = ask(server, stream=True, max_tokens=40)
    last = json.loads(text.split("\n\n")[-2].removeprefix("data: "))
    assert status == 200 and last["error"]["code"] == "internal" and "scripted failure" not in text
    wait_for(lambda: "answered" in lines.getvalue())
    (failed,) = [line for line in map(json.loads, lines.getvalue().splitlines()) if line["event"] == "failed"]
    assert (failed["level"], failed["status"]) == ("error", 500)
    assert "scripted failure" in failed["reason"] and failed["id"] in text


def test_no_log_line_quotes_what_a_client_sent(serve: Serve, lines: StringIO) -> None:
    server = serve()
    secret = "hunter2"
    chat = "/v1/chat/completions"
    assert secret in require_error(ask(server, prompt={"a": secret}), 422)["message"], "the client sees it"
    messages: list[Any] = [secret, [secret], [{"role": secret, "content": "x"}]]
    for given in messages:
        body = {"model": "scripted", "messages": given}
        require_error(call(server, "POST", chat, body), 422)
    require_error(ask(server, prompt=[4711]), 400)
    require_error(ask(server, prompt=[1] * 65), 400)
    told = lines.getvalue()
    assert told.count('"refused"') == 6 and "has 65 tokens" in told
    assert secret not in told and "4711" not in told


def test_metrics_can_be_read_while_they_grow(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler's thread may add the first round that accepted a further position at any moment."""
    server = serve()

    class Growing(Counter[int]):
        def items(self) -> Any:
            for item in super().items():
                self[len(self)] = 1
                yield item

    monkeypatch.setattr(server.scheduler.totals, "accepted_at", Growing({0: 3}))
    monkeypatch.setattr(server.scheduler.totals, "drafting_rounds", 3)
    assert call(server, "GET", "/metrics")[0] == 200


def test_metrics_tell_what_happened(serve: Serve) -> None:
    server = serve(slots=2)
    for _ in range(3):
        ask(server, max_tokens=50)
    ask(server, model="other")
    status, text, headers = call(server, "GET", "/metrics")
    assert status == 200 and headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert lines["specruntime_tokens_total"] == "150.0"
    assert lines['specruntime_responses_total{route="/v1/completions",status="200"}'] == "3.0"
    assert lines['specruntime_responses_total{route="/v1/completions",status="404"}'] == "1.0"
    assert lines["specruntime_kv_rows_limit"] == "128.0" and lines["specruntime_slots"] == "2.0"
    assert lines["specruntime_first_token_seconds_count"] == "3.0"
    assert 0 < float(lines['specruntime_acceptance_ratio{position="1"}']) <= 1
    assert float(lines['specruntime_phase_seconds_total{phase="verify"}']) > 0
    rounds = float(lines["specruntime_rounds_total"])
    assert float(lines["specruntime_round_tokens_count"]) == rounds
    assert float(lines['specruntime_round_tokens_bucket{le="+Inf"}']) == rounds
