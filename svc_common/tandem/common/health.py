"""Implements grpc.health.v1 with a Watch that pushes.

The name "" is liveness: SERVING as long as the process answers. Every other name is readiness. Watch sends the present
status at once and each later one as it changes; fast changes may be merged, the last one always arrives. When the
server stops, watchers hear NOT_SERVING and then the end of their stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tandem.common.errors import not_found

SERVICE_NAME = "grpc.health.v1.Health"
LIVENESS = ""

_Response = health_pb2.HealthCheckResponse


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """Tells liveness under "", readiness under each of `names`."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = frozenset(names)
        self._ready = False
        self._closed = False
        self._changed = asyncio.Event()  # replaced at each change, so that every watcher wakes exactly once

    def set_ready(self, ready: bool) -> None:
        """Changes the readiness and wakes the watchers."""
        if ready != self._ready and not self._closed:
            self._ready = ready
            self._wake()

    def close(self) -> None:
        """Tells NOT_SERVING and ends every Watch."""
        self._ready = False
        self._closed = True
        self._wake()

    def status(self, name: str) -> int:
        """Returns the present status of a name."""
        if name == LIVENESS:
            return int(_Response.SERVING)
        if name in self._names:
            return int(_Response.SERVING if self._ready else _Response.NOT_SERVING)
        return int(_Response.SERVICE_UNKNOWN)

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Any) -> health_pb2.HealthCheckResponse:  # noqa: N802
        status = self.status(request.service)
        if status == _Response.SERVICE_UNKNOWN:
            raise not_found("service", request.service, sorted(self._names))
        return _Response(status=status)

    async def Watch(  # noqa: N802
        self, request: health_pb2.HealthCheckRequest, context: Any
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        sent = None
        while True:
            # Both are taken before the status is read: a change while the last one is being sent is not lost.
            changed, closed = self._changed, self._closed
            status = self.status(request.service)
            if status != sent:
                sent = status
                yield _Response(status=status)
            if closed:
                return
            await changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def add_health(health: Health, server: grpc.aio.Server) -> None:
    """Registers the servicer."""
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
