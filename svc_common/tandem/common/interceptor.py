"""Admits or refuses every RPC before anything else is done for it.

| why not                                  | what the client gets                                |
|------------------------------------------|-----------------------------------------------------|
| no such method                           | UNIMPLEMENTED                                       |
| no bearer token, where one is asked for  | UNAUTHENTICATED or PERMISSION_DENIED (`callers.py`) |
| the server is starting, or draining      | UNAVAILABLE; health, admin and the like are reached |
| too many calls are open                  | RESOURCE_EXHAUSTED; those are reached as well       |
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any

import grpc
import grpc.aio

from tandem.common.callers import Callers
from tandem.common.errors import ServiceError, draining, unavailable
from tandem.common.guarded_method import GuardedMethod
from tandem.common.message_limits import MessageLimits
from tandem.common.metrics import ServiceMetrics
from tandem.common.open_calls import OpenCalls, RunningRpcs
from tandem.common.service import Lifecycle
from tandem.common.turns import Turns


class AdmissionInterceptor(grpc.aio.ServerInterceptor):
    """Admits the RPCs of one server; each method it lets in is a `GuardedMethod`.

    `work` are the proto services whose new RPCs are refused while the server does not accept, or while `max_calls` of
    them are open; methods in `reachable` are let in nevertheless. `limits` are those of large requests, by the path of
    their method.
    """

    def __init__(
        self,
        metrics: ServiceMetrics,
        lifecycle: Lifecycle,
        running: RunningRpcs,
        work: Collection[str],
        reachable: Collection[str],
        callers: Callers,
        max_calls: int,
        limits: Mapping[str, MessageLimits],
    ) -> None:
        self._metrics = metrics
        self._lifecycle = lifecycle
        self._running = running
        self._work = frozenset(work)
        self._reachable = frozenset(reachable)
        self._callers = callers
        self._calls = OpenCalls(max_calls, metrics.too_many_calls)
        self._limits = limits
        self._turns = Turns()
        self._methods: dict[str, GuardedMethod] = {}

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        path: str = handler_call_details.method
        method = self._methods.get(path)
        if method is None:
            handler = await continuation(handler_call_details)
            if handler is None:
                self._metrics.unknown_method()
                return None
            service, _, name = path.strip("/").rpartition("/")
            is_work = service in self._work and path not in self._reachable
            method = self._methods[path] = GuardedMethod(
                path,
                handler,
                self._metrics.method(service, name),
                self._running,
                refusal=self._refusal if is_work else None,
                identify=self._callers.identify,
                calls=self._calls if is_work else None,
                limits=self._limits.get(path),
                turns=self._turns,
            )
        refusal = self._callers.refusal(path, handler_call_details.invocation_metadata) or method.refusal()
        return method.wrapped if refusal is None else method.refusing(refusal)

    def _refusal(self) -> ServiceError | None:
        """Returns the error while new work is not let in, or None."""
        if self._lifecycle.accepting:
            return None
        if self._lifecycle.state == "starting":
            return unavailable("this server is still starting", reason="STARTING")
        return draining()
