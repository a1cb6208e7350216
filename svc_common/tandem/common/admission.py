"""Admits or refuses every RPC before anything else is done for it.

| why not                                  | what the client gets                                |
|------------------------------------------|-----------------------------------------------------|
| no such method                           | UNIMPLEMENTED                                       |
| no bearer token, where one is asked for  | UNAUTHENTICATED or PERMISSION_DENIED (`callers.py`) |
| the server is starting, or draining      | UNAVAILABLE; health, admin and the like are reached |
| too many calls are open                  | RESOURCE_EXHAUSTED; those are reached as well       |
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import grpc

from tandem.common.at_once import AtOnce
from tandem.common.callers import Callers
from tandem.common.errors import ServiceError, draining, unavailable
from tandem.common.guarded_method import GuardedMethod
from tandem.common.message_limits import MessageLimits
from tandem.common.metrics import ServiceMetrics
from tandem.common.open_calls import OpenCalls, RunningRpcs
from tandem.common.service import Lifecycle
from tandem.common.turns import Turns


class Admission(grpc.GenericRpcHandler):
    """Admits the RPCs of one server; each method it lets in is a `GuardedMethod`.

    It is the only handler that gRPC knows: services add theirs to it as to a server. (An interceptor would do the same,
    and each call would wait for two more coroutines.)

    `work` are the proto services whose new RPCs are refused while the server does not accept, or while `max_calls` of
    them are open; methods in `reachable` are let in nevertheless. `limits` are those of large requests, by the path of
    their method, and `at_once` what answers small ones.
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
        at_once: Mapping[str, AtOnce],
    ) -> None:
        self._metrics = metrics
        self._lifecycle = lifecycle
        self._running = running
        self._work = frozenset(work)
        self._reachable = frozenset(reachable)
        self._callers = callers
        self._calls = OpenCalls(max_calls, metrics.too_many_calls)
        self._limits = limits
        self._at_once = at_once
        self._turns = Turns()
        self._handlers: list[grpc.GenericRpcHandler] = []
        self._methods: dict[str, GuardedMethod] = {}

    def add_generic_rpc_handlers(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        """Adds the methods of a service, as `grpc.aio.Server` does."""
        self._handlers += handlers

    def add_registered_method_handlers(self, service: str, handlers: object) -> None:
        """Does nothing: the same methods come as a generic handler too, and are looked up by the name in the call. For
        each registered method grpc.aio keeps a task that waits for its next call, and sets up the wait for all of them
        anew at every call: with twelve methods a quarter of what a bare call costs."""

    def service(self, handler_call_details: Any) -> Any:
        """Returns the handler of a call; None where there is no such method."""
        path: str = handler_call_details.method
        method = self._methods.get(path)
        if method is None:
            handler = next(filter(None, (each.service(handler_call_details) for each in self._handlers)), None)
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
                at_once=self._at_once.get(path),
            )
        refusal = None
        if self._callers.have_tokens:
            refusal = self._callers.refusal(path, handler_call_details.invocation_metadata)
        refusal = refusal or method.refusal()
        return method.wrapped if refusal is None else method.refusing(refusal)

    def _refusal(self) -> ServiceError | None:
        """Returns the error while new work is not let in, or None."""
        if self._lifecycle.accepting:
            return None
        if self._lifecycle.state == "starting":
            return unavailable("this server is still starting", reason="STARTING")
        return draining()
