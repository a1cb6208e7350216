"""What operators ask of a worker: its load, draining, an empty cache."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tandem.inference.v1 import admin_pb2 as pb

from .rpc import CallContext, unary
from .worker import Worker


class WorkerState(Enum):
    """Whether a worker takes requests."""

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
    """What runs and waits at a worker, the pages of its cache, and counters since its engine started."""

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
    integrity_error: str | None  # None: not checked; "": the page table's bookkeeping is right

    @property
    def idle(self) -> bool:
        """Whether nothing runs or waits."""
        return not self.running_requests and not self.waiting_requests


async def get_load(worker: Worker, check_integrity: bool, context: CallContext) -> WorkerLoad:
    request = pb.GetLoadRequest(check_integrity=check_integrity)
    load = await unary(worker.admin.GetLoad, request, context, service="worker")
    return WorkerLoad(
        running_requests=load.running_requests,
        waiting_requests=load.waiting_requests,
        waiting_tokens=load.waiting_tokens,
        pages_total=load.pages_total,
        pages_free=load.pages_free,
        pages_cached=load.pages_cached,
        pages_referenced=load.pages_referenced,
        steps=load.steps,
        prompt_tokens=load.prompt_tokens,
        cached_prompt_tokens=load.cached_prompt_tokens,
        output_tokens=load.output_tokens,
        preemptions=load.preemptions,
        evictions=load.evictions,
        integrity_error=load.integrity_error if load.HasField("integrity_ok") else None,
    )


async def set_draining(worker: Worker, draining: bool, context: CallContext) -> WorkerState:
    request = pb.SetDrainingRequest(draining=draining)
    response = await unary(worker.admin.SetDraining, request, context, service="worker")
    return _STATES.get(response.state, WorkerState.UNKNOWN)


async def clear_prefix_cache(worker: Worker, context: CallContext) -> int:
    response = await unary(worker.admin.ClearPrefixCache, pb.ClearPrefixCacheRequest(), context, service="worker")
    return response.pages_cleared
