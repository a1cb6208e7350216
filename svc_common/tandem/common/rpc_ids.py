"""Carries the request id and the trace id of an RPC from its metadata into the log and back to the client."""

from __future__ import annotations

import re
from contextvars import ContextVar
from random import Random
from typing import Any

import grpc.aio

from tandem.common.callers import Metadata
from tandem.common.logs import request_id_var, trace_id_var

traceparent_var: ContextVar[str] = ContextVar("traceparent", default="")  # as it came; "" where it is malformed

REQUEST_ID = "x-request-id"
TRACEPARENT = "traceparent"  # W3C trace context

_made = Random()  # noqa: S311 - ids need not be secret, and the system's numbers take a call of the kernel
_REQUEST_ID = re.compile(r"[!-~]{1,128}")
# Ids of zeros alone are none: proxies that do not trace send them. Version ff is forbidden, and 00 has no fifth part.
_TRACEPARENT = re.compile(r"(?!ff|00.{53}-)[0-9a-f]{2}-((?!0{32})[0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")


def ids_in(metadata: Metadata) -> tuple[str, str]:
    """Returns the client's request id, or else a new one, and its `traceparent` as it came."""
    request_id = traceparent = ""
    for key, value in metadata:
        if key == REQUEST_ID and isinstance(value, str) and _REQUEST_ID.fullmatch(value):
            request_id = value
        elif key == TRACEPARENT and isinstance(value, str):
            traceparent = value
    return request_id or f"{_made.getrandbits(64):016x}", traceparent


def adopt_ids(request_id: str, traceparent: str) -> None:
    """Sets the ids that the log shows."""
    request_id_var.set(request_id)
    trace_id = trace_id_of(traceparent)
    trace_id_var.set(trace_id)
    traceparent_var.set(traceparent if trace_id else "")


def trace_id_of(traceparent: str) -> str:
    """Returns the trace id of a W3C `traceparent`; empty where it is malformed."""
    match = _TRACEPARENT.fullmatch(traceparent)
    return match[1] if match else ""


def echo_request_id(context: grpc.aio.ServicerContext[Any, Any]) -> None:
    """Adds the request id to the trailing metadata; a handler may have changed either."""
    found, mine = context.trailing_metadata() or (), (REQUEST_ID, request_id_var.get())
    if tuple(found) != (mine,):
        context.set_trailing_metadata((*(pair for pair in found if pair[0] != REQUEST_ID), mine))
