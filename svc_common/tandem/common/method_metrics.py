"""Counts the RPCs of each method that run, how others ended, and how long they took.

Plain numbers, to which one event loop adds, and which a scrape reads from its thread: prometheus_client's own counters
take a lock for each, five times as long, and these are counted for every call.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

HANDLING_BUCKETS = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800),
)
_BOUNDS = (*map(floatToGoString, HANDLING_BUCKETS), "+Inf")
_LABELS = ("grpc_service", "grpc_method")


class MethodMetrics:
    """The metrics of one RPC method."""

    __slots__ = ("_by_bucket", "_by_code", "_exemplars", "_labels", "_seconds", "in_flight")

    def __init__(self, service: str, method: str) -> None:
        self.in_flight = 0
        self._labels = (service, method)
        self._by_code: dict[str, int] = {}
        self._by_bucket = [0] * len(_BOUNDS)
        self._seconds = 0.0
        self._exemplars: dict[int, Exemplar] = {}  # the last one of each bucket

    def handled(self, code: str, seconds: float, exemplar: dict[str, str] | None = None) -> None:
        """Counts one RPC that ended with `code` (a name such as "OK") after `seconds`; `exemplar` is its trace."""
        self._by_code[code] = self._by_code.get(code, 0) + 1
        bucket = bisect_left(HANDLING_BUCKETS, seconds)
        self._by_bucket[bucket] += 1
        self._seconds += seconds
        if exemplar is not None:
            self._exemplars[bucket] = Exemplar(exemplar, seconds, time.time())

    def add_to(
        self, handled: CounterMetricFamily, in_flight: GaugeMetricFamily, seconds: HistogramMetricFamily
    ) -> None:
        """Adds what was counted to the families."""
        in_flight.add_metric(self._labels, self.in_flight)
        for code, count in self._by_code.copy().items():
            handled.add_metric((*self._labels, code), count)
        exemplars = map(self._exemplars.get, range(len(_BOUNDS)))
        buckets: list[Any] = list(zip(_BOUNDS, accumulate(self._by_bucket), exemplars, strict=True))
        seconds.add_metric(self._labels, buckets, self._seconds)


class MethodsCollector(Collector):
    """Reads the metrics of all methods at a scrape."""

    def __init__(self) -> None:
        self._methods: dict[tuple[str, str], MethodMetrics] = {}
        self.unknown = 0  # calls of methods that there are not

    def of(self, service: str, method: str) -> MethodMetrics:
        """Returns the metrics of one method."""
        return self._methods.setdefault((service, method), MethodMetrics(service, method))

    def describe(self) -> Iterable[Metric]:
        return self.collect()

    def collect(self) -> Iterable[Metric]:
        handled = CounterMetricFamily(
            "tandem_grpc_server_handled", "RPCs that ended, by status code.", labels=(*_LABELS, "grpc_code")
        )
        in_flight = GaugeMetricFamily("tandem_grpc_server_in_flight", "RPCs that run now.", labels=_LABELS)
        seconds = HistogramMetricFamily(
            "tandem_grpc_server_handling_seconds",
            "Time from the arrival of an RPC's request to its status.",
            labels=_LABELS,
        )
        for method in list(self._methods.values()):
            method.add_to(handled, in_flight, seconds)
        if self.unknown:
            handled.add_metric(("unknown", "unknown", "UNIMPLEMENTED"), self.unknown)
        return handled, in_flight, seconds
