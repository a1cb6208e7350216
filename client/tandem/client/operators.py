"""Operators' calls: each goes to all workers of a client, and the answers come by address.

An RPC of WorkerAdminService is a method of `AsyncOperators` and a line of `Client`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import grpc.aio

from tandem.client.params import CallOptions
from tandem.client.rpc import CallContext, unary
from tandem.client.signatures import spell_out_keywords
from tandem.client.text_calls import check_call
from tandem.client.worker import Worker
from tandem.inference.v1 import admin_pb2 as pb

if TYPE_CHECKING:  # stubs have it, and at run time it is the class of the plain ones
    from tandem.inference.v1.admin_pb2_grpc import WorkerAdminServiceAsyncStub

T = TypeVar("T")
Response = TypeVar("Response")


class WorkerState(Enum):
    """The state of a worker's server."""

    UNKNOWN = "unknown"  # it says something that this version does not know
    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"  # new requests are refused, running ones go on
    ENGINE_RESTARTING = "engine restarting"


_STATES = {
    pb.SERVER_STATE_STARTING: WorkerState.STARTING,
    pb.SERVER_STATE_SERVING: WorkerState.SERVING,
    pb.SERVER_STATE_DRAINING: WorkerState.DRAINING,
    pb.SERVER_STATE_ENGINE_RESTARTING: WorkerState.ENGINE_RESTARTING,
}


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """The requests that run and wait at a worker, the pages of its KV cache, and counters since its engine started."""

    running_requests: int
    waiting_requests: int
    waiting_tokens: int  # of prompts
    pages_total: int
    pages_free: int
    pages_cached: int  # hold a prefix that nothing references
    pages_referenced: int
    steps: int
    prompt_tokens: int
    cached_prompt_tokens: int
    output_tokens: int
    preemptions: int
    evictions: int
    states_total: int  # slots for states of sequences; 0: no layer of the model has a state
    states_running: int
    states_cached: int  # kept for prefixes
    integrity_error: str | None  # None: not checked; "": the page table's bookkeeping is right

    @property
    def idle(self) -> bool:
        """True when no request runs or waits."""
        return not self.running_requests and not self.waiting_requests

    @classmethod
    def of(cls, load: pb.GetLoadResponse) -> WorkerLoad:
        known = {field.name: getattr(load, field.name) for field in fields(cls)}
        return cls(**known | ({} if load.HasField("integrity_ok") else {"integrity_error": None}))


@spell_out_keywords
class AsyncOperators(ABC):
    """The part of `AsyncClient` for operators."""

    async def get_loads(
        self, *, check_integrity: bool = False, **options: Unpack[CallOptions]
    ) -> dict[str, WorkerLoad]:
        """Returns the load of each worker, by address. With `check_integrity` each worker also checks its page table.
        Raises PermissionDeniedError for a token that is not an operator's."""
        request = pb.GetLoadRequest(check_integrity=check_integrity)
        return await self._ask_workers(lambda admin: admin.GetLoad, request, options, WorkerLoad.of)

    async def set_draining(self, draining: bool, **options: Unpack[CallOptions]) -> dict[str, WorkerState]:
        """Lets each worker refuse new requests while running ones finish (True), or take requests again (False).
        Returns their states afterwards, by address. Raises PermissionDeniedError for a token that is not an operator's.
        """
        request = pb.SetDrainingRequest(draining=draining)
        return await self._ask_workers(
            lambda admin: admin.SetDraining, request, options, lambda it: _STATES.get(it.state, WorkerState.UNKNOWN)
        )

    async def clear_prefix_cache(self, **options: Unpack[CallOptions]) -> dict[str, int]:
        """Lets each worker drop the cached prefixes that no running request uses. Returns the number of pages dropped,
        by address. Raises PermissionDeniedError for a token that is not an operator's."""
        request = pb.ClearPrefixCacheRequest()
        return await self._ask_workers(
            lambda admin: admin.ClearPrefixCache, request, options, lambda it: it.pages_cleared
        )

    async def _ask_workers(
        self,
        method: Callable[[WorkerAdminServiceAsyncStub], grpc.aio.UnaryUnaryMultiCallable[Any, Response]],
        request: object,
        options: CallOptions,
        read: Callable[[Response], T],
    ) -> dict[str, T]:
        check_call(options)
        context = self._context(options)

        async def ask(worker: Worker) -> T:
            return read(await unary(method(worker.admin), request, context, service="worker"))

        return await self._of_each_worker(ask, context)

    @abstractmethod
    def _context(self, options: CallOptions) -> CallContext: ...

    @abstractmethod
    async def _of_each_worker(self, ask: Callable[[Worker], Awaitable[T]], context: CallContext) -> dict[str, T]: ...
