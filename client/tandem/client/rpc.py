"""What every call shares: deadline, metadata, and typed exceptions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import grpc.aio

from .deadline import Deadline
from .errors import CancelledError, ClientClosedError, from_rpc_error
from .settings import Credentials

Response = TypeVar("Response")
Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallContext:
    """What the calls of one request share over all hops."""

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
            pairs["x-routing-key"] = routing_key
        return (*pairs.items(), *(self.credentials.metadata() if self.credentials else ()))

    def timeout(self, service: str) -> float | None:
        """Seconds for the next RPC; raises DeadlineExceededError when none are left."""
        return self.deadline.remaining(f"waiting for the {service}", service, self.request_id)

    async def sleep(self, seconds: float, service: str) -> None:
        """Sleeps, or raises DeadlineExceededError when the budget ends first."""
        await asyncio.sleep(self.deadline.cap(seconds))
        self.timeout(service)

    @contextmanager
    def errors(self, service: str) -> Iterator[None]:
        """Turns what grpc.aio raises into this package's exceptions."""
        try:
            yield
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, service=service, request_id=self.request_id) from error
        except grpc.aio.UsageError as error:
            raise ClientClosedError("the client is closed") from error
        except asyncio.CancelledError as error:
            # grpc.aio raises this also when the server, or a closed channel, cancelled the call: then nobody asked this
            # task to stop.
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            if self.closed():
                raise ClientClosedError("the client was closed during the call") from error
            raise CancelledError(
                f"the call was cancelled by the {service}", service=service, request_id=self.request_id
            ) from error


async def unary(
    method: grpc.aio.UnaryUnaryMultiCallable[Any, Response], request: object, context: CallContext, *, service: str
) -> Response:
    """The response, or a StatusError. Cancelling the task cancels the call."""
    with context.errors(service):
        return await method(request, timeout=context.timeout(service), metadata=context.metadata())
