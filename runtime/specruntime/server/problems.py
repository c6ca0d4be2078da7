"""Maps errors to HTTP statuses and the error body of the OpenAI API.

Owns which error of the library is which status. Messages name cause and cure; of a defect only that there was one.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from starlette.exceptions import HTTPException
from starlette.responses import Response

from specruntime.errors import CapacityExceeded, EmptyPrompt, InvalidArgument
from specruntime.serving.events import Cancelled, DeadlinePassed, Draining, QueueFull

# The statuses of a request for an answer, as the OpenAPI document describes them.
STATUSES = {
    400: "not JSON, or values that cannot be answered", 401: "no known API key", 404: "another model",
    408: "the body came too slowly", 413: "the body is too long", 415: "not application/json",
    422: "not of this schema", 429: "the queue is full", 500: "a defect of the server",
    503: "shutting down, or out of memory", 504: "the time was over",
}  # fmt: skip


def json_bytes(value: object) -> bytes:
    """Half a surrogate pair becomes `?`: it has no UTF-8. Raises ValueError for NaN and infinities."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")


def json_response(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(json_bytes(value), status, headers, "application/json")


@dataclass(eq=False)
class Problem(HTTPException):
    """An error as the API reports it. FastAPI passes on what is an `HTTPException` while it reads a body."""

    status: int
    message: str
    kind: str = "invalid_request_error"
    code: str | None = None
    parameter: str | None = None
    retry_after: int | None = None  # seconds
    quotes: bool = False  # whether the message may hold some of the request: logs leave it out

    def __post_init__(self) -> None:
        super().__init__(self.status, self.message)

    @property
    def body(self) -> dict[str, dict[str, str | None]]:
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.parameter,
                "code": self.code,
            }
        }

    def response(self) -> Response:
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return json_response(self.body, self.status, headers)


def problem_of(error: Exception) -> Problem:
    """Return the problem that an error of the library is to the client."""
    if isinstance(error, Problem):
        return error
    text = str(error)
    if isinstance(error, CapacityExceeded):
        return Problem(400, text, code="context_length_exceeded")
    if isinstance(error, InvalidArgument | EmptyPrompt):
        return Problem(400, text, code="invalid_value", quotes=True)
    if isinstance(error, QueueFull):
        return Problem(429, text, "rate_limit_error", "queue_full", retry_after=1)
    if isinstance(error, Draining):
        return Problem(503, text, "server_error", "draining", retry_after=5)
    if isinstance(error, MemoryError):
        return Problem(
            503, "no memory for this request: try again later", "server_error", "out_of_memory", retry_after=5
        )
    if isinstance(error, DeadlinePassed):
        return Problem(504, text, "server_error", "timeout")
    if isinstance(error, Cancelled):
        return Problem(499, text, "server_error", "cancelled")
    return Problem(500, "the server failed at this request; its log says more", "server_error", "internal")
