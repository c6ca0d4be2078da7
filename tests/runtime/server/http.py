"""HTTP by hand, for what a well-behaved client library never sends."""

import http.client
import json
from typing import Any

from tests.runtime.server.conftest import Running

PROMPT = [3, 5, 3, 5, 3]


def completion(**fields: Any) -> dict[str, Any]:
    return {"model": "scripted", "prompt": PROMPT, "max_tokens": 8, "temperature": 0, **fields}


def request_bytes(body: bytes, *, length: int | None = None, path: str = "/v1/completions") -> bytes:
    """A whole request; `length` is what it claims."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body) if length is None else length}\r\n\r\n"
    )
    return head.encode() + body


def call(
    server: Running,
    method: str,
    path: str,
    body: object = None,
    headers: dict[str, str] | None = None,
) -> tuple[int, Any, dict[str, str]]:
    """Status, body (parsed where it is JSON) and headers, these in lower case."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    try:
        raw = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        given = {"Content-Type": "application/json"} if body is not None else {}
        connection.request(method, path, raw, {**given, **(headers or {})})
        response = connection.getresponse()
        data = response.read()
        told = {name.lower(): value for name, value in response.getheaders()}
        parsed = (
            json.loads(data) if data and told.get("content-type") == "application/json" else data.decode()
        )
        return response.status, parsed, told
    finally:
        connection.close()


def ask(server: Running, **fields: Any) -> tuple[int, Any, dict[str, str]]:
    return call(server, "POST", "/v1/completions", completion(**fields))


def require_error(answer: tuple[int, Any, dict[str, str]], status: int) -> dict[str, Any]:
    """The `error` object of an answer that must have this status and OpenAI's shape."""
    found, body, _ = answer
    assert found == status, body
    assert set(body) == {"error"} and set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    error: dict[str, Any] = body["error"]
    return error
