"""Metrics that every server has. Each server owns its registry; nothing is global, so tests can run many."""

from __future__ import annotations

import platform

import google.protobuf
import grpc
from prometheus_client import CollectorRegistry, Counter, Gauge, GCCollector, Histogram, ProcessCollector

from tandem.common.method_metrics import MethodMetrics, MethodsCollector
from tandem.common.version import version

_LAG_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


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
        self._methods = MethodsCollector()
        self.registry.register(self._methods)
        self.too_many_calls = Counter(
            "tandem_grpc_server_too_many_calls_total",
            "Calls refused because too many were open.",
            registry=self.registry,
        )

    def method(self, service: str, method: str) -> MethodMetrics:
        """Returns the metrics of one method; ask once and keep them."""
        return self._methods.of(service, method)

    def unknown_method(self) -> None:
        """Counts a call of an unknown method; its name comes from the caller and is no label."""
        self._methods.unknown += 1
