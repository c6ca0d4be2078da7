"""The OpenAPI document of the server: requests from their models, responses by hand."""

from typing import Any

from pydantic.json_schema import models_json_schema

from specruntime.server.schema import ChatRequest, CompletionRequest

Json = dict[str, Any]
_STATUSES = {
    400: "not JSON, or values that cannot be answered", 401: "no known API key", 404: "another model",
    408: "the body came too slowly", 413: "the body is too long", 415: "not application/json",
    422: "not of this schema", 429: "the queue is full", 500: "a defect of the server",
    503: "shutting down, or out of memory", 504: "the time was over",
}  # fmt: skip


def openapi_document(model_name: str, keyed: bool) -> Json:
    """JSON-ready. `keyed` tells that /v1 needs an API key."""
    _, definitions = models_json_schema(
        [(ChatRequest, "validation"), (CompletionRequest, "validation")],
        ref_template="#/components/schemas/{model}",
    )
    schemas = definitions["$defs"] | {"Error": _ERROR, "Model": _MODEL, "Usage": _USAGE}
    for request in ("ChatRequest", "CompletionRequest"):
        schemas[request]["properties"]["model"]["enum"] = [model_name]
    components: Json = {"schemas": schemas}
    if keyed:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": f"{model_name} on specruntime", "version": "1"},
        "paths": _paths(),
        "components": components,
        **({"security": [{"key": []}]} if keyed else {}),
    }


def _paths() -> Json:
    one_model: Json = _read("model", _json({"$ref": "#/components/schemas/Model"}), (401, 404))
    one_model["parameters"] = [
        {"name": "model", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
    ]
    status = {"type": "object", "properties": {"status": {"type": "string"}}, "required": ["status"]}
    return {
        "/v1/chat/completions": {"post": _ask("chat", "ChatRequest", "chat.completion")},
        "/v1/completions": {"post": _ask("completions", "CompletionRequest", "text_completion")},
        "/v1/models": {"get": _read("models", _json(_MODELS), (401,))},
        "/v1/models/{model}": {"get": one_model},
        "/health": {"get": _read("health", _json(status))},
        "/ready": {"get": _read("ready", _json(status))},
        "/metrics": {"get": _read("metrics", {"text/plain": {"schema": {"type": "string"}}})},
    }


def _ask(name: str, request: str, kind: str) -> Json:
    answer = _json(
        {
            "type": "object",
            "required": ["id", "object", "created", "model", "choices", "usage"],
            "properties": {
                "object": {"const": kind},
                "choices": {"type": "array", "minItems": 1, "items": {"type": "object"}},
                "usage": {"$ref": "#/components/schemas/Usage"},
            },
        }
    )
    sent = {"type": "object", "required": ["data"], "properties": {"data": _TEXT}}
    stream = {"text/event-stream": {"schema": sent}}
    body = {"required": True, "content": _json({"$ref": f"#/components/schemas/{request}"})}
    responses = {
        "200": {"description": "the answer", "content": answer | stream},
        **_errors(tuple(_STATUSES)),
    }
    return {"operationId": name, "requestBody": body, "responses": responses}


def _read(name: str, content: Json, errors: tuple[int, ...] = ()) -> Json:
    responses = {"200": {"description": name, "content": content}, **_errors(errors)}
    if name == "ready":
        responses["503"] = {"description": "takes no new requests", "content": content}
    return {"operationId": name, "responses": responses}


def _errors(statuses: tuple[int, ...]) -> Json:
    error = _json({"$ref": "#/components/schemas/Error"})
    return {str(status): {"description": _STATUSES[status], "content": error} for status in statuses}


def _json(schema: Json) -> Json:
    return {"application/json": {"schema": schema}}


_TEXT: Json = {"type": "string"}
_COUNT: Json = {"type": "integer", "minimum": 0}
_NULLABLE: Json = {"type": ["string", "null"]}
_ERROR: Json = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {"message": _TEXT, "type": _TEXT, "param": _NULLABLE, "code": _NULLABLE},
        }
    },
}
_MODEL: Json = {
    "type": "object",
    "required": ["id", "object", "created", "owned_by"],
    "properties": {"id": _TEXT, "object": {"const": "model"}, "created": _COUNT, "owned_by": _TEXT},
}
_MODELS: Json = {
    "type": "object",
    "required": ["object", "data"],
    "properties": {
        "object": {"const": "list"},
        "data": {"type": "array", "items": {"$ref": "#/components/schemas/Model"}},
    },
}
_USAGE: Json = {
    "type": "object",
    "required": ["prompt_tokens", "completion_tokens", "total_tokens"],
    "properties": {
        "prompt_tokens": _COUNT,
        "completion_tokens": _COUNT,
        "total_tokens": _COUNT,
        "prompt_tokens_details": {"type": "object", "properties": {"cached_tokens": _COUNT}},
    },
}
