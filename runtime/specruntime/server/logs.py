"""Writes logs as one JSON object per line. They hold figures and never a prompt, an answer or a key."""

import json
import logging
from datetime import UTC, datetime
from typing import Any, TextIO

LOG = logging.getLogger("specruntime.server")


class JsonLines(logging.Formatter):
    """`time`, `level`, `event`, then what the call gave as `extra={"fields": {...}}`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.name not in ("specruntime.server", "specruntime.serving"):
            line["logger"] = record.name
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=True, default=str)


def log_to(stream: TextIO, level: int = logging.INFO) -> None:
    """Send the logs of server, scheduler and uvicorn to a stream, in place of what they had."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    for name in ("specruntime", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)
    logging.getLogger("uvicorn.error").handlers = []


def log(event: str, level: int, /, **fields: Any) -> None:
    LOG.log(level, event, extra={"fields": fields})
