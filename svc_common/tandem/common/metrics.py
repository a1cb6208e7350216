"""Metrics that every server has. Each server owns its registry; nothing is global, so tests can run many."""

from __future__ import annotations

import platform
from dataclasses import dataclass

import google.protobuf
import grpc
from prometheus_client import CollectorRegistry, Counter, Gauge, GCCollector, Histogram, ProcessCollector

from tandem.common.version import version

HANDLING_BUCKETS = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800),
)
_LAG_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


@dataclass(slots=True)
class MethodMetrics:
    """Keeps the labelled metrics of one RPC method: looking labels up costs more than counting."""

    _handled: Counter
    _service: str
    _method: str
    in_flight: Gauge
    seconds: Histogram
    _by_code: dict[str, Counter]

    def handled(self, code: str, seconds: float, exemplar: dict[str, str] | None = None) -> None:
        """Counts one RPC that ended with `code` (a name such as "OK") after `seconds`; `exemplar` is its trace."""
        counter = self._by_code.get(code)
        if counter is None:
            counter = self._by_code[code] = self._handled.labels(self._service, self._method, code)
        counter.inc()
        self.seconds.observe(seconds, exemplar)


class ServerMetrics:
    """Owns the registry of one server, which adds its own metrics to `registry`.

    | metric                                | type      | meaning                                                  |
    |---------------------------------------|-----------|----------------------------------------------------------|
    | tandem_event_loop_lag_seconds         | histogram | how late the event loop woke a timer, four times a second |
    | tandem_ready                          | gauge     | 1 while health says SERVING                              |
    | tandem_build_info                     | gauge     | 1, with the versions as labels                           |
    | process_*, python_gc_*                |           | CPU, memory, file descriptors, start time; collections   |
    """

    def __init__(self, service: str) -> None:
        self.service = service  # as logs and build information name it, e.g. "tandem-worker"
        self.registry = CollectorRegistry()
        self.event_loop_lag = Histogram(
            "tandem_event_loop_lag_seconds",
            "How late the event loop woke a timer.",
            buckets=_LAG_BUCKETS,
            registry=self.registry,
        )
        self.ready = Gauge("tandem_ready", "1 while health says SERVING.", registry=self.registry)
        build = Gauge(
            "tandem_build_info",
            "Always 1; the labels say what runs.",
            ("service", "version", "python", "grpc", "protobuf"),
            registry=self.registry,
        )
        build.labels(service, version(), platform.python_version(), grpc.__version__, google.protobuf.__version__).set(
            1
        )
        ProcessCollector(registry=self.registry)
        GCCollector(registry=self.registry)


class ServiceMetrics(ServerMetrics):
    """Adds the metrics of every gRPC service.

    | metric                                | type      | meaning                                                  |
    |---------------------------------------|-----------|----------------------------------------------------------|
    | tandem_grpc_server_handled_total      | counter   | RPCs that ended, by service, method and status code      |
    | tandem_grpc_server_in_flight          | gauge     | RPCs that run now, by service and method                 |
    | tandem_grpc_server_handling_seconds   | histogram | from the request's arrival to the status, same labels    |
    | tandem_grpc_server_too_many_calls_total | counter | calls refused because too many were open                 |
    """

    def __init__(self, service: str) -> None:
        super().__init__(service)
        labels = ("grpc_service", "grpc_method")
        self._handled = Counter(
            "tandem_grpc_server_handled_total",
            "RPCs that ended, by status code.",
            (*labels, "grpc_code"),
            registry=self.registry,
        )
        self._in_flight = Gauge("tandem_grpc_server_in_flight", "RPCs that run now.", labels, registry=self.registry)
        self._seconds = Histogram(
            "tandem_grpc_server_handling_seconds",
            "Time from the arrival of an RPC's request to its status.",
            labels,
            buckets=HANDLING_BUCKETS,
            registry=self.registry,
        )
        self.too_many_calls = Counter(
            "tandem_grpc_server_too_many_calls_total",
            "Calls refused because too many were open.",
            registry=self.registry,
        )

    def method(self, service: str, method: str) -> MethodMetrics:
        """Makes the labelled metrics of one method; ask once and keep them."""
        return MethodMetrics(
            self._handled,
            service,
            method,
            self._in_flight.labels(service, method),
            self._seconds.labels(service, method),
            {},
        )

    def unknown_method(self) -> None:
        """Counts a call of an unknown method; its name comes from the caller and is no label."""
        self._handled.labels("unknown", "unknown", "UNIMPLEMENTED").inc()
