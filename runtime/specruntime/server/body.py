"""A request's body: bounded in bytes and in time, JSON, and of the schema."""

import asyncio
import json
import re
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from specruntime.manifest.messages import describe_problem, path_of, worst
from specruntime.server.problems import Problem

M = TypeVar("M", bound=BaseModel)


async def read_body(request: Request, model: type[M], limit: int, seconds: float) -> M:
    """The body as `model`. Raises `Problem`: 408 too slow, 413 too long, 415 no JSON, 400 malformed, 422 another.

    Only `application/json` is taken: no web page can send that to another host unasked.
    """
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/json":
        raise Problem(415, f"the content type is {media or 'missing'}, expected application/json")
    try:
        async with asyncio.timeout(seconds):
            raw = await _read(request, limit)
    except TimeoutError:
        raise Problem(408, f"the body did not arrive within {seconds:g} s; send it faster") from None
    document = _parse(raw)
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise _misfit(error, model) from None


async def _read(request: Request, limit: int) -> bytes:
    too_long = Problem(413, f"the body is longer than {limit} bytes, which is all this server takes")
    stated = request.headers.get("content-length", "0")
    if stated.isdecimal() and int(stated[:20]) > limit:
        raise too_long
    pieces, size = [], 0
    try:
        async for piece in request.stream():
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
    raise ValueError(f"{name} is no JSON number")


def _misfit(error: ValidationError, model: type[BaseModel]) -> Problem:
    parameter = re.sub(r"\[(\d+)\]", r".\1", path_of(worst(error), model))[:200] or None
    message = describe_problem(error, model)
    return Problem(422, message, code="invalid_type", parameter=parameter, quotes=True)
