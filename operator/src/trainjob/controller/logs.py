"""Log records on stderr, one line each, for people or for machines."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Literal, TextIO

LogFormat = Literal["plain", "json"]

_LEVELS = {
    "kopf": logging.WARNING,
    # `JobWatch` logs why a watch has ended; kopf logs three tracebacks each time.
    "kopf._core.reactor.orchestration": logging.CRITICAL,
    "kopf._core.reactor.running": logging.CRITICAL,
}


class PlainFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.000Z WARNING trainjob.controller: text`, with any traceback below."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        logger = record.name.removeprefix("trainjob.")
        line = f"{_time(record)} {record.levelname:<7} {logger}: {record.getMessage()}"
        error = _error(self, record)
        return f"{line}\n{error}" if error else line


class JsonFormatter(logging.Formatter):
    """One JSON object per line, tracebacks included."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        fields = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        error = _error(self, record)
        return json.dumps({**fields, "error": error} if error else fields, ensure_ascii=False)


def start_logging(form: LogFormat, stream: TextIO | None = None) -> None:
    """Send every log record to `stream`, stderr by default."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else PlainFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    logging.captureWarnings(capture=True)
    for logger, level in _LEVELS.items():
        logging.getLogger(logger).setLevel(level)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


def _error(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    parts = [formatter.formatException(record.exc_info)] if record.exc_info else []
    if record.stack_info:
        parts.append(formatter.formatStack(record.stack_info))
    return "\n".join(parts)
