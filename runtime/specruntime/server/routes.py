"""Surrounds every route with the API key, a bounded body, errors in the API's shape, counts and logs.

FastAPI parses and validates bodies and describes the routes. It reads a body before it resolves dependencies, so the
key is checked here. Its own limit of bytes answers in plain text, it has none of time, and its JSON takes NaN, so
bodies are read here too.
"""

import asyncio
import json
import re
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from logging import ERROR, INFO
from typing import Any, NoReturn

from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from specruntime import clock
from specruntime.manifest.messages import describe_problem, path_of, worst
from specruntime.server.logs import log
from specruntime.server.metrics import Metrics
from specruntime.server.problems import Problem, problem_of
from specruntime.server.settings import Settings
from specruntime.serving import Scheduler
from specruntime.text.codec import TextCodec

_KEYED = ("/v1/", "/tokenize", "/detokenize")


@dataclass(frozen=True)
class Served:
    """What the routes need, as `served` of the application's state: scheduler, codec and limits."""

    scheduler: Scheduler
    codec: TextCodec | None
    capacity: int
    settings: Settings
    metrics: Metrics
    started: int

    @property
    def max_prompt_tokens(self) -> int:
        return min(self.capacity, self.settings.max_prompt_tokens or self.capacity)


class BoundedRequest(Request):
    """A request whose body is JSON, and bounded in bytes and in time.

    `body` raises `Problem`: 408 too slow, 413 too long, 415 of another type, 499 the client left, 400 malformed.
    """

    def __init__(self, request: Request, settings: Settings) -> None:
        super().__init__(request.scope, request.receive)
        self.deadline = clock.now() + settings.request_seconds
        self._settings = settings
        self._raw: bytes | None = None
        self._document: Any = None

    async def body(self) -> bytes:
        """Only `application/json` is taken: no web page can send that to another host unasked."""
        if self._raw is not None:
            return self._raw
        media = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media != "application/json":
            raise Problem(415, f"the content type is {media or 'missing'}, expected application/json")
        seconds = self._settings.read_seconds
        try:
            async with asyncio.timeout(seconds):
                raw = await self._read(self._settings.max_body_bytes)
        except TimeoutError:
            raise Problem(408, f"the body did not arrive within {seconds:g} s; send it faster") from None
        self._raw, self._document = raw, _parse(raw)
        return raw

    async def json(self) -> Any:
        await self.body()
        return self._document

    async def _read(self, limit: int) -> bytes:
        too_long = Problem(413, f"the body is longer than {limit} bytes, which is all this server takes")
        stated = self.headers.get("content-length", "0")
        if stated.isdecimal() and int(stated[:20]) > limit:
            raise too_long
        pieces, size = [], 0
        try:
            async for piece in self.stream():
                size += len(piece)
                if size > limit:
                    raise too_long
                pieces.append(piece)
        except ClientDisconnect:
            raise Problem(499, "the client left before its body had arrived") from None
        return b"".join(pieces)


def _parse(raw: bytes) -> Any:
    try:
        return json.loads(raw.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise Problem(400, f"the body is not JSON: {reason}"[:300], code="invalid_json") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


class ServerRoute(APIRoute):
    """A route whose errors are problems, counted and logged. Those of `_KEYED` need a key where the server has keys."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer, path = super().get_route_handler(), self.path
        model: Any = None if self.body_field is None else self.body_field.field_info.annotation

        async def handle(request: Request) -> Response:
            served: Served = request.app.state.served
            started = clock.now()
            try:
                if path.startswith(_KEYED):
                    _require_key(request, served.settings)
                response = await answer(BoundedRequest(request, served.settings))
            except Exception as error:
                error = _cause(error)
                problem = problem_of(error)
                if isinstance(error, RequestValidationError):
                    problem = _misfit(error.body, model)
                log_problem("refused", problem, error, route=path, seconds=round(clock.now() - started, 4))
                response = problem.response()
            served.metrics.count_response(path, response.status_code)
            return response

        return handle


def _require_key(request: Request, settings: Settings) -> None:
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    known = scheme.lower() == "bearer" and settings.admits(key.strip())
    if settings.api_keys and not known:
        raise Problem(
            401, "the API key is missing or unknown; send it as 'Authorization: Bearer KEY'",
            "authentication_error", "invalid_api_key",
        )  # fmt: skip


def _cause(error: Exception) -> Exception:
    """Return what reading a body raised, where FastAPI has put an `HTTPException` in its place."""
    hidden = isinstance(error, HTTPException) and not isinstance(error, Problem)
    return error.__cause__ if hidden and isinstance(error.__cause__, Exception) else error


def _misfit(document: Any, model: type[BaseModel]) -> Problem:
    """Validate once more: FastAPI keeps a list of findings, and `describe_problem` reads pydantic's error."""
    try:
        model.model_validate(document)
    except ValidationError as error:
        parameter = re.sub(r"\[(\d+)\]", r".\1", path_of(worst(error), model))[:200] or None
        message = describe_problem(error, model)
        return Problem(422, message, code="invalid_type", parameter=parameter, quotes=True)
    return Problem(422, "the body is not of the schema", code="invalid_type")


def log_problem(event: str, problem: Problem, error: Exception, **fields: object) -> None:
    """With its reason: of a defect the error, which the client does not get, of others the client's message."""
    defect = problem.status == 500
    if not problem.quotes:
        fields["reason"] = repr(error) if defect else problem.message
    log(event, ERROR if defect else INFO, status=problem.status, code=problem.code, **fields)


async def routing_problem(request: Request, error: Exception) -> Response:
    """Answer errors of routing: no such path, or another method."""
    assert isinstance(error, HTTPException)
    message, path = str(error.detail), repr(request.url.path[:100])
    if error.status_code == 404:
        message = f"{path} is not a path here: GET /openapi.json lists them"
    if error.status_code == 405:
        message = (
            f"{path} does not take {request.method}, allowed: {(error.headers or {}).get('Allow', 'another')}"
        )
    response = Problem(error.status_code, message, quotes=True).response()
    response.headers.update(error.headers or {})
    return response
