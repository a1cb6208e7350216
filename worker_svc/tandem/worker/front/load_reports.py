"""Load as balancers read it: ORCA, Open Request Cost Aggregation, the standard of gRPC and Envoy.

    application_utilization   requests that run or wait, over the places: above 1 where some wait
    rps_fractional, eps       requests that end a second, and those among them that fail
    named_metrics             running and waiting requests, and the used share of the KV cache

gRPC's `weighted_round_robin` weighs a worker by rps / utilization: one that is slower ends fewer with as many places
taken, and is asked less. A report comes with the trailers of each Generate, and as a stream to whoever asks for one.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

import grpc.aio
from xds.data.orca.v3 import orca_load_report_pb2
from xds.service.orca.v3 import orca_pb2

from tandem.worker.engine.load import Load

TRAILER = "endpoint-load-metrics-bin"
SERVICE = "xds.service.orca.v3.OpenRcaService"
SHORTEST_INTERVAL = 1.0  # seconds between two reports of a stream
_WINDOW = 2.0  # seconds over which a rate falls to a third when nothing ends any more


class Queue(Protocol):
    """What is asked of the admission."""

    requests: int  # between admission and end


class Engine(Protocol):
    """What is asked of the supervisor."""

    load: Load


class LoadReports:
    """Makes the reports of one worker; used from one event loop."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._ended = self._failed = 0.0  # a second, fading
        self._at = time.monotonic()

    def ended(self, *, failed: bool) -> None:
        """Counts a request that has ended."""
        self._fade()
        self._ended += 1 / _WINDOW
        self._failed += failed / _WINDOW

    def _fade(self) -> None:
        now = time.monotonic()
        left = math.exp((self._at - now) / _WINDOW)
        self._ended, self._failed, self._at = self._ended * left, self._failed * left, now

    def trailers(self, queue: Queue, engine: Engine) -> tuple[tuple[str, bytes], ...]:
        """Returns the report as trailing metadata."""
        return ((TRAILER, self.report(queue, engine).SerializeToString()),)

    def report(self, queue: Queue, engine: Engine) -> orca_load_report_pb2.OrcaLoadReport:
        """Returns the load now."""
        self._fade()
        requests, load = queue.requests, engine.load
        return orca_load_report_pb2.OrcaLoadReport(
            application_utilization=requests / self._places,
            rps_fractional=self._ended,
            eps=self._failed,
            named_metrics={
                "running_requests": min(requests, self._places),
                "waiting_requests": max(0, requests - self._places),
                "kv_cache_usage": load.pages_referenced / max(1, load.pages_total),
            },
        )


def add_load_stream(server: grpc.aio.Server, report: Callable[[], orca_load_report_pb2.OrcaLoadReport]) -> None:
    """Adds the service that streams what `report` returns, at the interval that is asked for."""

    async def stream(
        request: orca_pb2.OrcaLoadReportRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[orca_load_report_pb2.OrcaLoadReport]:
        interval = max(SHORTEST_INTERVAL, request.report_interval.ToNanoseconds() / 1e9)
        while True:
            yield report()
            await asyncio.sleep(interval)

    handler = grpc.unary_stream_rpc_method_handler(
        stream,
        orca_pb2.OrcaLoadReportRequest.FromString,
        orca_load_report_pb2.OrcaLoadReport.SerializeToString,
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"StreamCoreMetrics": handler}),))
