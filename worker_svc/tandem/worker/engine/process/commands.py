"""Carries out operators' commands in the engine, between two steps.

One method for each RPC of WorkerAdminService that reaches the engine, by its name: the front passes on whatever
`AdminServicer` does not answer itself, and every rank obeys.
"""

from __future__ import annotations

import logging
from copy import copy

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from tandem.common.by_name import fields_of
from tandem.inference.v1 import admin_pb2 as pb
from tandem.worker.engine.engine import Engine
from tandem.worker.engine.load import Load

logger = logging.getLogger("tandem.worker.engine")

_RPCS = pb.DESCRIPTOR.services_by_name["WorkerAdminService"].methods_by_name


class Commands:
    """Carries out commands; used by the engine's thread only."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def obey(self, rpc: str, request: bytes) -> bytes:
        """Carries out an RPC; request and response are serialized."""
        response: Message = getattr(self, rpc)(GetMessageClass(_RPCS[rpc].input_type).FromString(request))
        return response.SerializeToString()

    def GetLoad(self, request: pb.GetLoadRequest) -> pb.GetLoadResponse:  # noqa: N802
        """Returns the load, with a check of the page table, for which alone the engine is asked."""
        error = ""
        try:
            self._engine.check()
        except AssertionError as failure:
            error = str(failure) or "the page table contradicts itself"
            logger.error("integrity check failed: %s", error)
        load = load_of(self._engine)
        known = fields_of(pb.GetLoadResponse, load, load.statistics)
        return pb.GetLoadResponse(integrity_ok=not error, integrity_error=error, **known)

    def ClearPrefixCache(self, request: pb.ClearPrefixCacheRequest) -> pb.ClearPrefixCacheResponse:  # noqa: N802
        return pb.ClearPrefixCacheResponse(pages_cleared=self._engine.table.clear())


def load_of(engine: Engine) -> Load:
    """Returns what runs and waits now, and the counters."""
    table, scheduler = engine.table, engine.scheduler
    states = table.states
    return Load(
        running_requests=len(scheduler.running),
        waiting_requests=scheduler.waiting,
        waiting_tokens=scheduler.waiting_tokens,
        pages_total=table.total,
        pages_free=table.free,
        pages_cached=table.cached,
        pages_referenced=table.referenced,
        states_total=0 if states is None else states.total,
        states_running=0 if states is None else states.total - len(states.free) - len(states.snapshots),
        states_cached=0 if states is None else len(states.snapshots),
        guide_processes=engine.grammars.processes,
        guide_memory_bytes=engine.grammars.memory,
        statistics=copy(table.statistics),
    )
