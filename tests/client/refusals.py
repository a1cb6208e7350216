"""How the small servers refuse a call."""

from __future__ import annotations

from collections.abc import Sequence

import grpc
import grpc.aio
from google.protobuf import any_pb2
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status


async def refuse(
    context: grpc.aio.ServicerContext,
    code: grpc.StatusCode,
    message: str,
    *,
    reason: str = "",
    violations: Sequence[tuple[str, str]] = (),
    retry_after: float | None = None,
    metadata: dict[str, str] | None = None,
) -> None:
    """Ends the call with a rich status."""
    details = []
    if reason:
        details.append(error_details_pb2.ErrorInfo(reason=reason, domain="tandem", metadata=metadata or {}))
    if violations:
        bad = error_details_pb2.BadRequest()
        for name, description in violations:
            bad.field_violations.add(field=name, description=description)
        details.append(bad)
    if retry_after is not None:
        delay = Duration(seconds=int(retry_after), nanos=int(retry_after % 1 * 1e9))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    status = status_pb2.Status(code=code.value[0], message=message)
    for detail in details:
        packed = any_pb2.Any()
        packed.Pack(detail)
        status.details.append(packed)
    await context.abort_with_status(rpc_status.to_status(status))
