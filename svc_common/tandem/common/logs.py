"""Writes logs to standard error, for people or for machines, with the request id of the RPC.

Prompts and answers never belong into a log record. Text of exceptions may quote its input, so it is cut short.
"""

from __future__ import annotations

import json
import logging
import math
import sys
import time
import traceback
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

# Set for each RPC: from the metadata `x-request-id`, or made anew.
request_id_var: ContextVar[str] = ContextVar("request_id", default="")
# The trace id of the W3C `traceparent` metadata, if there was one.
trace_id_var: ContextVar[str] = ContextVar("trace_id", default="")

_EXCEPTION_TEXT = 300  # characters of an exception's own words
_TALKATIVE = ("asyncio", "grpc")  # libraries that would drown our own lines
_encode = json.JSONEncoder(ensure_ascii=True, allow_nan=False, default=str).encode
_OF_EVERY_RECORD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def configure_logging(format: str, level: str, service: str) -> None:
    """Sends the log of the whole process to standard error.

    `format` is "human" or "json"; `level` a name of `logging`, in any case; `service` stands in each JSON line.
    """
    # Where a line was written, and by which thread, no format of ours shows; finding out takes half of a line's time.
    logging._srcfile = None  # as the standard library's documentation says
    for each in ("logThreads", "logProcesses", "logMultiprocessing", "logAsyncioTasks"):
        setattr(logging, each, False)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(service) if format == "json" else HumanFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.captureWarnings(True)
    if root.level < logging.WARNING:
        for library in _TALKATIVE:
            logging.getLogger(library).setLevel(logging.WARNING)


class JsonFormatter(logging.Formatter):
    """Formats a JSON object a line: ts, level, service, logger, message, request_id, trace_id, exception, extras."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "service": self._service,
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name, variable in (("request_id", request_id_var), ("trace_id", trace_id_var)):
            if value := variable.get():
                line[name] = value
        for name, value in vars(record).items():
            if name not in _OF_EVERY_RECORD and not name.startswith("_"):
                line[name if name not in line else f"extra_{name}"] = _plain(value)
        if exception := _exception_text(record):
            line["exception"] = exception
        return _encode(line)


class HumanFormatter(logging.Formatter):
    """Formats `12:31:07.123 info  tandem.common.server: text (request 3f2a)`, then the traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        text = _continued(record.getMessage())
        line = f"{clock}.{int(record.msecs):03d} {record.levelname.lower():<7} {record.name}: {text}"
        extra = [
            f"{name}={value}"
            for name, value in vars(record).items()
            if name not in _OF_EVERY_RECORD and not name.startswith("_")
        ]
        if request_id := request_id_var.get():
            extra.append(f"request_id={request_id}")
        if extra:
            line += f" ({_printable(', '.join(extra))})"
        if exception := _exception_text(record):
            line += "\n    " + _continued(exception)
        return line


def _continued(text: str) -> str:
    """Indents all lines but the first, so that none can pass for a line of its own."""
    return _printable(text) if "\n" not in text else "\n    ".join(map(_printable, text.split("\n")))


def _printable(text: str) -> str:
    """Escapes what could begin a line or steer a terminal: callers choose some of what is told."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def _plain(value: object) -> object:
    """Turns what JSON cannot hold into text; NaN and infinity are not JSON."""
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def _exception_text(record: logging.LogRecord) -> str:
    if not record.exc_info or record.exc_info[0] is None:
        return ""
    kind, error, trace = record.exc_info
    words = str(error)
    if len(words) > _EXCEPTION_TEXT:
        words = f"{words[:_EXCEPTION_TEXT]}… ({len(words)} characters)"
    frames = "".join(traceback.format_tb(trace))
    return f"Traceback (most recent call last):\n{frames}{kind.__module__}.{kind.__qualname__}: {words}"
