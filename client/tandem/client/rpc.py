"""The common part of all calls: deadline, metadata and typed exceptions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import quote

import grpc.aio

from tandem.client.deadline import Deadline
from tandem.client.errors import (
    CancelledError,
    ClientClosedError,
    DeadlineExceededError,
    InternalError,
    StatusError,
    TandemError,
    deadline_exceeded,
    from_rpc_error,
)
from tandem.client.patience import Patience
from tandem.client.settings import Credentials

Response = TypeVar("Response")


class _ClosedStub:
    def __getattr__(self, method: str) -> Any:
        raise ClientClosedError("the client is closed")


CLOSED: Any = _ClosedStub()
"""In place of the stub of a channel that is closed: an object that refers to a channel keeps gRPC running."""

Metadata = tuple[tuple[str, str], ...]

# What metadata can carry stays as it is, so that a balancer sees plain keys as they were given.
_PRINTABLE = "".join(map(chr, range(0x20, 0x7F)))

# Metadata that belongs to one answer alone. Other metadata (a tenant, a route) is shared by those that agree in it.
_OF_ONE_ANSWER = {"traceparent", "tracestate", "baggage", "x-request-id"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CallContext:
    """The values that all RPCs of one request share."""

    deadline: Deadline
    closed: Callable[[], bool]  # whether the client was closed meanwhile
    request_id: str = ""
    credentials: Credentials | None = None
    extra: Mapping[str, str] = field(default_factory=dict)

    def metadata(self, routing_key: str = "") -> Metadata:
        pairs = dict(self.extra)
        if self.request_id:
            pairs.setdefault("x-request-id", self.request_id)
        if routing_key:
            pairs["x-routing-key"] = quote(routing_key, safe=_PRINTABLE)
        return (*pairs.items(), *(self.credentials.metadata() if self.credentials else ()))

    def shared_metadata(self) -> Metadata:
        """Returns what a call has that many answers share, but for credentials."""
        return tuple(sorted(pair for pair in self.extra.items() if pair[0].lower() not in _OF_ONE_ANSWER))

    def timeout(self, service: str) -> float | None:
        """Returns the seconds for the next RPC. Raises DeadlineExceededError when none are left."""
        return self.deadline.remaining(f"waiting for the {service}", service, self.request_id)

    async def sleep(self, patience: Patience, after: StatusError, service: str) -> None:
        """Pauses after an error, or raises DeadlineExceededError when the budget ends first."""
        await asyncio.sleep(self.deadline.cap(patience.pause(after, self.deadline.left)))
        self.in_time(after, service)

    def in_time(self, after: StatusError, service: str) -> None:
        """Raises DeadlineExceededError, with what was waited for, when no time is left."""
        if self.deadline.left == 0:
            raise self.too_late(after, service)

    def too_late(self, after: StatusError, service: str) -> DeadlineExceededError:
        """Returns the error of a deadline that has passed, with what was waited for."""
        waiting_for = f"waiting for the {service} ({after.message})"
        return deadline_exceeded(waiting_for, service=service, request_id=self.request_id)

    def errors(self, service: str) -> _Errors:
        """Returns a context that turns grpc.aio's errors into this package's exceptions."""
        return _Errors(self, service)


@dataclass(frozen=True, slots=True)
class _Errors:
    """Drops the causes' tracebacks and our frames' references to calls: an exception that somebody keeps must not keep
    gRPC running (see forks.py)."""

    context: CallContext
    service: str

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        del traceback  # of this frame too
        if error is None:
            return
        error.__traceback__ = None
        if (translated := self._translated(error)) is not None:
            raise translated from error

    def _translated(self, error: BaseException) -> TandemError | None:
        """Returns the exception to raise instead; None means that it is raised as it is."""
        service, request_id = self.service, self.context.request_id
        if isinstance(error, grpc.aio.AioRpcError):
            return from_rpc_error(error, service=service, request_id=request_id)
        if isinstance(error, grpc.aio.UsageError):
            return ClientClosedError("the client is closed")
        if isinstance(error, grpc.aio.InternalError):  # of the metadata of an interceptor, for example
            problem = "gRPC refuses to send the call; its line on standard error says why"
            return InternalError(problem, service=service, request_id=request_id)
        if isinstance(error, asyncio.CancelledError):
            # grpc.aio raises this also when the server, or a closed channel, cancelled the call: then nobody asked this
            # task to stop.
            task = asyncio.current_task()
            if task is None or task.cancelling():
                return None
            if self.context.closed():
                return ClientClosedError("the client was closed during the call")
            return CancelledError(f"the call was cancelled by the {service}", service=service, request_id=request_id)
        return None


async def unary(
    method: grpc.aio.UnaryUnaryMultiCallable[Any, Response], request: object, context: CallContext, *, service: str
) -> Response:
    """Returns the response or raises StatusError. Cancelling the task cancels the call."""
    try:
        with context.errors(service):
            return await method(request, timeout=context.timeout(service), metadata=context.metadata())
    finally:
        del method  # see _Errors
