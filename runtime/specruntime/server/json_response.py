"""JSON as it leaves the server: UTF-8, without what JSON has no words for."""

import json
from collections.abc import Mapping

from starlette.responses import Response


def json_bytes(value: object) -> bytes:
    """Half a surrogate pair becomes `?`: it has no UTF-8. Raises ValueError for NaN and infinities."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")


def json_response(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(json_bytes(value), status, headers, "application/json")
