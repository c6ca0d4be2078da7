"""The server's routes and what surrounds every one of them: keys, limits, logs, counts, and errors in one shape.

Owns HTTP. Answers come from `specruntime.serving`, their shape from `answers`.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from logging import ERROR, INFO
from typing import TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from specruntime import clock
from specruntime.server.body import read_body
from specruntime.server.logs import log
from specruntime.server.metrics import Metrics
from specruntime.server.openapi import openapi_document
from specruntime.server.problems import Problem, json_bytes, json_response, problem_of
from specruntime.server.responses import AnswerShape
from specruntime.server.schema import ChatRequest, CompletionRequest
from specruntime.server.settings import Settings
from specruntime.server.sse import DONE, EventStream, disconnected, event
from specruntime.server.work import work_of
from specruntime.serving import AsyncStream, Delivery, Scheduler
from specruntime.serving.events import Cancelled
from specruntime.text.codec import TextCodec

T = TypeVar("T")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"


@dataclass(frozen=True)
class Served:
    """What the routes need: who schedules, who encodes, and the limits."""

    scheduler: Scheduler
    codec: TextCodec | None
    capacity: int
    settings: Settings
    metrics: Metrics
    started: int

    @property
    def max_prompt_tokens(self) -> int:
        return min(self.capacity, self.settings.max_prompt_tokens or self.capacity)


def create_app(scheduler: Scheduler, codec: TextCodec | None, capacity: int, settings: Settings) -> Starlette:
    """The ASGI application. It neither starts nor closes the scheduler."""
    served = Served(scheduler, codec, capacity, settings, Metrics(scheduler), int(time.time()))
    page = _page(settings.model_name, codec is not None and codec.has_chat_template)
    document = openapi_document(settings.model_name, bool(settings.api_keys))

    async def show_page(request: Request) -> Response:
        headers = {"Content-Security-Policy": _POLICY, "X-Content-Type-Options": "nosniff"}
        return HTMLResponse(page, headers=headers)

    async def describe(request: Request) -> Response:
        return json_response(document)

    async def health(request: Request) -> Response:
        return json_response({"status": "ok"})

    async def ready(request: Request) -> Response:
        accepting = served.scheduler.accepting
        return json_response({"status": "ready" if accepting else "draining"}, 200 if accepting else 503)

    async def metrics(request: Request) -> Response:
        return Response(served.metrics.render(), media_type="text/plain; version=0.0.4")

    async def models(request: Request) -> Response:
        return json_response({"object": "list", "data": [_model(served)]})

    async def model(request: Request) -> Response:
        _require_model(served, request.path_params["model"])
        return json_response(_model(served))

    async def chat(request: Request) -> Response:
        return await _answer(served, request, ChatRequest)

    async def completions(request: Request) -> Response:
        return await _answer(served, request, CompletionRequest)

    guarded = {
        "/v1/models": (models, "GET"),
        "/v1/models/{model:path}": (model, "GET"),
        "/v1/chat/completions": (chat, "POST"),
        "/v1/completions": (completions, "POST"),
    }
    open_ones = {
        "/": show_page, "/openapi.json": describe, "/health": health, "/ready": ready, "/metrics": metrics,
    }  # fmt: skip
    routes = [Route(path, _watched(served, path, handler)) for path, handler in open_ones.items()]
    routes += [
        Route(path, _watched(served, path, _keyed(served, handler)), methods=[method])
        for path, (handler, method) in guarded.items()
    ]
    return Starlette(routes=routes, exception_handlers={HTTPException: _http_problem})


Handler = Callable[[Request], Awaitable[Response]]


def _watched(served: Served, route: str, handler: Handler) -> Handler:
    """Turns every error into a problem, counts it, and logs what failed."""

    async def watch(request: Request) -> Response:
        started = clock.now()
        try:
            response = await handler(request)
        except Exception as error:
            problem = problem_of(error)
            _log_problem("refused", problem, error, route=route, seconds=round(clock.now() - started, 4))
            response = problem.response()
        served.metrics.count_response(route, response.status_code)
        return response

    return watch


def _log_problem(event: str, problem: Problem, error: Exception, **fields: object) -> None:
    """With its reason: of a defect the error, which the client is not told, of others what the client is told."""
    defect = problem.status == 500
    if not problem.quotes:
        fields["reason"] = repr(error) if defect else problem.message
    log(event, ERROR if defect else INFO, status=problem.status, code=problem.code, **fields)


def _keyed(served: Served, handler: Handler) -> Handler:
    async def check(request: Request) -> Response:
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        known = scheme.lower() == "bearer" and served.settings.admits(key.strip())
        if served.settings.api_keys and not known:
            raise Problem(
                401, "the API key is missing or unknown; send it as 'Authorization: Bearer KEY'",
                "authentication_error", "invalid_api_key",
            )  # fmt: skip
        return await handler(request)

    return check


async def _answer(
    served: Served, request: Request, model: type[ChatRequest] | type[CompletionRequest]
) -> Response:
    settings = served.settings
    deadline = clock.now() + settings.request_seconds
    asked = await read_body(request, model, settings.max_body_bytes, settings.read_seconds)
    _require_model(served, asked.model)
    asked = asked.model_copy(update={"model": served.settings.model_name})
    work = await work_of(asked, served.codec, served.max_prompt_tokens)
    stream = AsyncStream(served.scheduler, work, seconds=max(0.0, deadline - clock.now()))
    shape = AnswerShape(asked, work.prompt.tolist(), served.codec)
    try:
        if not asked.stream:
            deliveries = await _unless_gone(request, _collect(stream))
            _account(served, request, shape, deliveries[-1])
            return json_response(shape.whole(deliveries))
        # The status of a stream is told with its first token: until then an error has a status of its own.
        first = await _unless_gone(request, anext(stream))
    except BaseException:
        stream.close()
        raise
    with_usage = asked.stream_options is not None and asked.stream_options.include_usage is True
    return EventStream(_events(served, request, shape, stream, first, with_usage), settings.write_seconds)


async def _events(
    served: Served,
    request: Request,
    shape: AnswerShape,
    stream: AsyncStream,
    first: Delivery,
    with_usage: bool,
) -> AsyncIterator[bytes]:
    """The events of a stream; an error after the first token is its last event."""
    delivery = first
    try:
        yield event(json_bytes(shape.chunk(first)))
        async for delivery in stream:
            yield event(json_bytes(shape.chunk(delivery)))
        if with_usage:
            yield event(json_bytes(shape.usage_chunk(delivery.figures)))
        yield DONE
    except Exception as error:
        problem = problem_of(error)
        _log_problem("failed", problem, error, route=request.url.path, id=shape.id)
        yield event(json_bytes(problem.body))
    finally:
        stream.close()
        _account(served, request, shape, delivery)


async def _collect(stream: AsyncStream) -> list[Delivery]:
    return [delivery async for delivery in stream]


async def _unless_gone(request: Request, answer: Awaitable[T]) -> T:
    """What the awaitable gives; raises `Cancelled` when the client leaves before."""
    answering = asyncio.ensure_future(answer)
    leaving = asyncio.ensure_future(disconnected(request.receive))
    try:
        await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
        if answering.done():
            return answering.result()
        raise Cancelled("the client left before its answer")
    finally:
        for task in (answering, leaving):
            task.cancel()
        await asyncio.gather(answering, leaving, return_exceptions=True)


def _account(served: Served, request: Request, shape: AnswerShape, last: Delivery) -> None:
    figures, reason = last.figures, last.delta.finish_reason
    served.metrics.count_answer(figures)
    rounded = {name: round(value, 3) for name, value in figures.as_dict().items()}
    fields = {"route": request.url.path, "id": shape.id, "finish_reason": reason or "cut off", **rounded}
    log("answered", INFO, **fields)


def _page(model_name: str, chat: bool) -> str:
    page = files("specruntime.server").joinpath("page.html").read_text(encoding="utf-8")
    return page.replace("{{model}}", escape(model_name)).replace("{{chat}}", "yes" if chat else "no")


def _model(served: Served) -> dict[str, object]:
    return {
        "id": served.settings.model_name,
        "object": "model",
        "created": served.started,
        "owned_by": "specruntime",
        "max_model_len": served.capacity,
    }


def _require_model(served: Served, name: str | None) -> None:
    if name is not None and name != served.settings.model_name:
        raise Problem(
            404, f"the model {name[:100]!r} is not served here, {served.settings.model_name!r} is",
            code="model_not_found", parameter="model",
        )  # fmt: skip


async def _http_problem(request: Request, error: Exception) -> Response:
    """Errors of routing: no such path, or another method."""
    assert isinstance(error, HTTPException)
    message, path = str(error.detail), repr(request.url.path[:100])
    if error.status_code == 404:
        message = f"{path} is no path here: GET /openapi.json lists them"
    if error.status_code == 405:
        message = (
            f"{path} does not take {request.method}, allowed: {(error.headers or {}).get('Allow', 'another')}"
        )
    response = Problem(error.status_code, message, quotes=True).response()
    response.headers.update(error.headers or {})
    return response
