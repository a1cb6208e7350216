"""Turns a ServiceError into bytes on the wire: status message, `google.rpc.Status` details, trailing metadata.

All of it travels as HTTP/2 trailers. gRPC clients accept 8 KiB of them by default and replace a longer status by one of
their own, which would hide the error. So message and details have byte budgets, and what does not fit is left out, last
first; the code, the reason and the first violations always arrive.
"""

from __future__ import annotations

import math
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from tandem.common.errors import ServiceError

DOMAIN = "tandem"

_MESSAGE_BYTES = 768  # three times as many when every byte is percent-encoded, and once more in the details
_DETAIL_BYTES = 2048  # of all details together; 4/3 of that as base64
_VALUE_BYTES = 256  # of one description or metadata value
_LONGEST_RETRY = 3600.0  # seconds

Trailers = tuple[tuple[str, str | bytes], ...]


def clip(text: str, limit: int) -> str:
    """Cuts text between characters to at most `limit` bytes of UTF-8; lone surrogates become "?"."""
    raw = text.encode("utf-8", "replace")
    if len(raw) <= limit:
        return raw.decode()
    return raw[: limit - 3].decode("utf-8", "ignore") + "…"


def to_wire(error: ServiceError) -> tuple[grpc.StatusCode, str, Trailers]:
    """Returns the status code, status message and trailing metadata of an error."""
    status = to_status(error)
    trailers: list[tuple[str, str | bytes]] = [("grpc-status-details-bin", status.SerializeToString())]
    retry_after = _sane_retry(error.retry_after)
    if retry_after is not None:
        trailers.append(("grpc-retry-pushback-ms", str(round(retry_after * 1000))))
    return error.code, status.message, tuple(trailers)


def to_status(error: ServiceError) -> Any:
    """Returns the `google.rpc.Status` of an error."""
    status = status_pb2.Status(code=error.code.value[0], message=clip(error.message, _MESSAGE_BYTES))
    for detail in _details(error, _sane_retry(error.retry_after), _DETAIL_BYTES):
        status.details.add().Pack(detail)
    return status


def _details(error: ServiceError, retry_after: float | None, room: int) -> list[Message]:
    info = error_details_pb2.ErrorInfo(reason=clip(error.reason, 63), domain=DOMAIN)
    for key, value in error.metadata.items():
        info.metadata[clip(key, 64)] = clip(value, _VALUE_BYTES)
        if info.ByteSize() > room // 2:
            del info.metadata[clip(key, 64)]
            break
    details: list[Message] = [info]
    if retry_after is not None:
        nanos = round(retry_after * 1e9)
        details.append(
            error_details_pb2.RetryInfo(
                retry_delay=Duration(seconds=nanos // 1_000_000_000, nanos=nanos % 1_000_000_000)
            )
        )
    if error.violations:
        room -= sum(detail.ByteSize() for detail in details)
        bad_request = error_details_pb2.BadRequest()
        for violation in error.violations:
            bad_request.field_violations.add(
                field=clip(violation.field, _VALUE_BYTES), description=clip(violation.description, _VALUE_BYTES)
            )
            if bad_request.ByteSize() > room:
                del bad_request.field_violations[-1]
                break
        details.append(bad_request)
    return details


def _sane_retry(seconds: float | None) -> float | None:
    """Limits a delay to what a Duration and a 32-bit count of milliseconds can hold; NaN becomes none."""
    if seconds is None or math.isnan(seconds):
        return None
    return min(max(seconds, 0.0), _LONGEST_RETRY)
