"""The server's routes and their OpenAPI document, on FastAPI.

Owns paths and endpoints. Answers come from `specruntime.serving`, their shape from `responses`; `routes` has what
surrounds every endpoint.
"""

import asyncio
import time
from html import escape
from importlib.resources import files
from logging import INFO
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Path
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response

from specruntime import clock
from specruntime.server import tokens
from specruntime.server.logs import log
from specruntime.server.metrics import Metrics
from specruntime.server.problems import STATUSES, Problem, json_bytes, json_response
from specruntime.server.responses import AnswerShape
from specruntime.server.routes import BoundedRequest, Served, ServerRoute, routing_problem
from specruntime.server.schema import (
    ChatAnswer,
    ChatRequest,
    CompletionAnswer,
    CompletionRequest,
    Error,
    Model,
    Models,
    State,
)
from specruntime.server.settings import Settings
from specruntime.server.streams import EventStream, configure_streams, events_of, unless_gone
from specruntime.server.work import prompts_of, works_for
from specruntime.serving import AsyncStreams, Delivery, Scheduler
from specruntime.text.codec import TextCodec

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"
_EVENT = {"type": "object", "required": ["data"], "properties": {"data": {"type": "string"}}}
_STREAM: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {"schema": _EVENT}}}}


def create_app(scheduler: Scheduler, codec: TextCodec | None, capacity: int, settings: Settings) -> FastAPI:
    """Return the ASGI application. It neither starts nor closes the scheduler."""
    configure_streams()
    app = FastAPI(
        title=f"{settings.model_name} on specruntime",
        version="1",
        openapi_url=None,  # served below, and counted as every route is
        docs_url=None,  # these pages load scripts of other hosts
        redoc_url=None,
        exception_handlers={HTTPException: routing_problem},
        # Its spans would hold what clients send; /metrics and the log have the figures.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    app.state.served = Served(scheduler, codec, capacity, settings, Metrics(scheduler), int(time.time()))
    app.router.route_class = ServerRoute
    _add_open_routes(app, _page(settings.model_name, codec is not None and codec.has_chat_template))
    _add_v1(app, keyed=bool(settings.api_keys))
    _add_tokens(app, keyed=bool(settings.api_keys))

    async def describe() -> Response:
        return Response(document, media_type="application/json")

    app.add_api_route("/openapi.json", describe, include_in_schema=False)
    document = json_bytes(_document(app, settings.model_name))
    for route in app.routes:
        if isinstance(route, APIRoute) and route.methods == {"GET"}:
            route.methods.add("HEAD")  # after the document, which would describe it apart
    return app


def _add_open_routes(app: FastAPI, page: str) -> None:
    async def show_page() -> Response:
        headers = {"Content-Security-Policy": _POLICY, "X-Content-Type-Options": "nosniff"}
        return HTMLResponse(page, headers=headers)

    draining: dict[int | str, dict[str, Any]] = {
        503: {"model": State, "description": "takes no new requests"}
    }
    app.add_api_route("/", show_page, include_in_schema=False)
    app.add_api_route("/health", health, operation_id="health", response_model=State)
    app.add_api_route("/ready", ready, operation_id="ready", response_model=State, responses=draining)
    app.add_api_route("/metrics", metrics, operation_id="metrics", response_class=PlainTextResponse)


def _add_v1(app: FastAPI, *, keyed: bool) -> None:
    key = [Depends(HTTPBearer(scheme_name="key", auto_error=False))] if keyed else []  # described by it only
    app.add_api_route(
        "/v1/models", models, operation_id="models", dependencies=key, response_model=Models, responses=_errors(401)
    )  # fmt: skip
    app.add_api_route(
        "/v1/models/{model:path}", model, operation_id="model", dependencies=key, response_model=Model,
        responses=_errors(401, 404) | {"4XX": {"model": Error}},  # or FastAPI adds an error of its own shape
    )  # fmt: skip
    answers = _STREAM | _errors(*STATUSES)
    app.add_api_route(
        "/v1/chat/completions", chat, methods=["POST"], operation_id="chat", dependencies=key,
        response_model=ChatAnswer, responses=answers,
    )  # fmt: skip
    app.add_api_route(
        "/v1/completions", completions, methods=["POST"], operation_id="completions", dependencies=key,
        response_model=CompletionAnswer, responses=answers,
    )  # fmt: skip


def _add_tokens(app: FastAPI, *, keyed: bool) -> None:
    """Add what converts text and ids; named as in vLLM, outside /v1, and opened by the same keys."""
    key = [Depends(HTTPBearer(scheme_name="key", auto_error=False))] if keyed else []
    problems = _errors(400, 401, 404, 408, 413, 415, 422, 500)
    app.add_api_route(
        "/tokenize", tokenize_text, methods=["POST"], operation_id="tokenize", dependencies=key,
        response_model=tokens.Tokens, responses=problems,
    )  # fmt: skip
    app.add_api_route(
        "/detokenize", detokenize_ids, methods=["POST"], operation_id="detokenize", dependencies=key,
        response_model=tokens.Text, responses=problems,
    )  # fmt: skip


def _errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": Error, "description": STATUSES[status]} for status in statuses}


def _document(app: FastAPI, model_name: str) -> dict[str, Any]:
    """FastAPI's document with the one model that requests may name."""
    document = app.openapi()
    for request in (ChatRequest, CompletionRequest, tokens.TokenizeRequest, tokens.DetokenizeRequest):
        schema = document["components"]["schemas"][request.__name__]
        schema["properties"]["model"]["enum"] = [model_name]
    return document


def _page(model_name: str, chat: bool) -> str:
    page = files("specruntime.server").joinpath("page.html").read_text(encoding="utf-8")
    return page.replace("{{model}}", escape(model_name)).replace("{{chat}}", "yes" if chat else "no")


def _served(request: Request) -> Served:
    served: Served = request.app.state.served
    return served


async def health() -> Response:
    return json_response({"status": "ok"})


async def ready(request: Request) -> Response:
    accepting = _served(request).scheduler.accepting
    return json_response({"status": "ready" if accepting else "draining"}, 200 if accepting else 503)


async def metrics(request: Request) -> Response:
    return Response(_served(request).metrics.render(), media_type="text/plain; version=0.0.4")


async def models(request: Request) -> Response:
    return json_response({"object": "list", "data": [_model(_served(request))]})


async def model(
    request: Request, model: Annotated[str, Path(json_schema_extra={"minLength": 1})]
) -> Response:
    served = _served(request)
    _require_model(served, model)
    return json_response(_model(served))


async def chat(request: BoundedRequest, asked: ChatRequest) -> Response:
    return await _answer(request, asked)


async def completions(request: BoundedRequest, asked: CompletionRequest) -> Response:
    return await _answer(request, asked)


async def tokenize_text(request: BoundedRequest, asked: tokens.TokenizeRequest) -> Response:
    served = _served(request)
    _require_model(served, asked.model)
    return json_response(await tokens.tokenize(asked, served.codec, served.capacity))


async def detokenize_ids(request: BoundedRequest, asked: tokens.DetokenizeRequest) -> Response:
    served = _served(request)
    _require_model(served, asked.model)
    return json_response(await tokens.detokenize(asked, served.codec))


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


async def _answer(request: BoundedRequest, asked: ChatRequest | CompletionRequest) -> Response:
    served, route = _served(request), request.url.path
    _require_model(served, asked.model)
    asked = asked.model_copy(update={"model": served.settings.model_name})
    prompts = await prompts_of(asked, served.codec, served.max_prompt_tokens)
    works = works_for(asked, prompts)
    if works[0].params.structured_outputs is not None:  # compiling it may take a while; then it is kept
        await asyncio.to_thread(served.scheduler.check, works[0])
    stream = AsyncStreams(served.scheduler, works, seconds=max(0.0, request.deadline - clock.now()))
    shape = AnswerShape(asked, prompts, served.codec)

    def account(last: Delivery) -> None:
        served.metrics.count_answer(last.figures)
        _log_answer(route, shape.id, last)

    try:
        if not asked.stream:
            answers = await unless_gone(request.receive, _collect(stream, len(works)))
            for deliveries in answers:
                account(deliveries[-1])
            return json_response(shape.whole(answers))
        # The status of a stream is sent with its first token: until then an error has a status of its own.
        first = await unless_gone(request.receive, anext(stream))
    except BaseException:
        stream.close()
        raise
    with_usage = asked.stream_options is not None and asked.stream_options.include_usage is True
    events = events_of(stream, first, shape, route=route, with_usage=with_usage, ended=account)
    return EventStream(events, served.settings.write_seconds)


async def _collect(stream: AsyncStreams, count: int) -> list[list[Delivery]]:
    answers: list[list[Delivery]] = [[] for _ in range(count)]
    async for number, delivery in stream:
        answers[number].append(delivery)
    return answers


def _log_answer(route: str, answer_id: str, last: Delivery) -> None:
    rounded = {name: round(value, 3) for name, value in last.figures.as_dict().items()}
    reason = last.delta.finish_reason or "cut off"
    log("answered", INFO, route=route, id=answer_id, finish_reason=reason, **rounded)
